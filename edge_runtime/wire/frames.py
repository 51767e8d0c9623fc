"""Pixels to frames and back: raw RGB, or JPEG whose header is read before it is decoded."""

from __future__ import annotations

from typing import cast

import cv2
import numpy as np

from edge_runtime.errors import ProtocolError
from edge_runtime.wire.messages import Frame, Pixels

JPEG_OVERHEAD = 4096  # bytes that a JPEG may be larger than the raw frame: a tiny picture is mostly tables

_MOST_HEADER = 1 << 16  # bytes of a JPEG before its picture, and segments that these may be: it is walked in Python
_MOST_SEGMENTS = 100
_FRAME_STARTS = (0xC0, 0xC1)  # baseline, extended sequential
_SCAN_START = 0xDA
_TABLES = (0xC4, 0xDB, 0xDD, *range(0xE0, 0xF0), 0xFE)  # Huffman, quantisation, restart interval, APPn, comment
_BLOCK = 1 << 20  # bytes that are searched at once

# Colours in full: to a policy, colours at half the resolution cost more than the bytes saved would buy in quality.
_IN_FULL = (cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444)


def compress(frame: Frame, quality: int) -> Frame:
    """`frame` as 4:4:4 JPEG of `quality` 1..100, or as it is when it is one already or would not get smaller."""
    if frame.encoding == "jpeg":
        return frame
    # OpenCV writes JPEG from BGR.
    bgr = cv2.cvtColor(_raw_pixels(frame), cv2.COLOR_RGB2BGR)
    done, data = cv2.imencode(".jpg", bgr, (cv2.IMWRITE_JPEG_QUALITY, quality, *_IN_FULL))
    if not done or data.nbytes >= len(frame.data):
        return frame
    return Frame(frame.camera, frame.height, frame.width, "jpeg", data.data.cast("B"))


def pixels(frame: Frame) -> Pixels:
    """The (height, width, 3) uint8 RGB pixels of `frame`; read-only over its bytes when it is raw.

    Raises ProtocolError when the data is not what the frame declares. A JPEG's own header is compared with the
    declared shape before a pixel is allocated; only baseline JPEG of exactly one scan is taken, since each further scan
    costs a pass over the whole picture, and a small file can hold thousands.
    """
    if frame.encoding == "raw":
        return _raw_pixels(frame)
    data = np.frombuffer(frame.data, np.uint8)
    shape = _jpeg_shape(memoryview(frame.data))
    if shape != (frame.height, frame.width):
        raise ProtocolError(
            f"frame {frame.camera}: the JPEG is {shape[1]}x{shape[0]}, declared {frame.width}x{frame.height}"
        )
    try:
        rgb = cv2.imdecode(data, cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error as error:
        raise ProtocolError(f"frame {frame.camera}: the JPEG cannot be decoded") from error
    if rgb is None or rgb.shape != (*shape, 3):
        raise ProtocolError(f"frame {frame.camera}: the JPEG cannot be decoded")
    return cast(Pixels, rgb)


def _raw_pixels(frame: Frame) -> Pixels:
    if len(frame.data) != frame.height * frame.width * 3:
        raise ProtocolError(
            f"frame {frame.camera}: {len(frame.data)} bytes are not {frame.width}x{frame.height} RGB pixels"
        )
    return np.frombuffer(frame.data, np.uint8).reshape(frame.height, frame.width, 3)


def _jpeg_shape(data: memoryview) -> tuple[int, int]:
    """(height, width) of a whole baseline JPEG of one scan (ITU-T T.81, B.2), by its header. Raises ProtocolError."""
    if bytes(data[:2]) != b"\xff\xd8" or bytes(data[-2:]) != b"\xff\xd9":
        raise ProtocolError("frame: is not a whole JPEG")
    shape, components, at = (0, 0), 0, 2
    for _ in range(_MOST_SEGMENTS):
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if data[at : at + 1].tobytes() != b"\xff" or end < at + 4 or end > min(len(data), _MOST_HEADER):
            break
        marker, segment = data[at + 1], data[at + 4 : end]
        if marker == _SCAN_START:
            if not components:
                break
            if segment[:1] != bytes([components]) or _next_marker(data, end) != len(data) - 2:
                raise ProtocolError("frame: is a JPEG of more than one scan")
            return shape
        if marker in _FRAME_STARTS and not components and len(segment) > 5:  # precision, height, width, components
            shape = int.from_bytes(segment[1:3], "big"), int.from_bytes(segment[3:5], "big")
            components = segment[5]
        elif marker not in _TABLES:
            raise ProtocolError("frame: is not a baseline JPEG")
        at = end
    raise ProtocolError(
        f"frame: is a JPEG without a start of frame and of scan in its first {_MOST_SEGMENTS} segments and"
        f" {_MOST_HEADER} bytes"
    )


def _next_marker(data: memoryview, at: int) -> int:
    """Where the entropy-coded data that begins at `at` ends: at a marker that is not a restart's, or with `data`."""
    while at + 1 < len(data):
        block = np.frombuffer(data[at : at + _BLOCK + 1], np.uint8)
        after = block[1:]
        found = np.flatnonzero((block[:-1] == 0xFF) & (after != 0) & ((after & 0xF8) != 0xD0))
        if found.size:
            return at + int(found[0])
        at += _BLOCK
    return len(data)
