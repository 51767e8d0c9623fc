"""Pixels to frames and back: raw RGB, or JPEG whose header is read before it is decoded."""

from __future__ import annotations

from typing import cast

import cv2
import numpy as np

from edge_runtime.errors import ProtocolError
from edge_runtime.wire.messages import Frame, Pixels

JPEG_OVERHEAD = 4096  # bytes that a JPEG may be larger than the raw frame: a tiny picture is mostly tables


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
    declared shape before a pixel is allocated; only baseline JPEG is taken, since a progressive one can hold
    thousands of scans, each of which costs a pass over the whole picture.
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
    """(height, width) from the start-of-frame segment of a whole baseline JPEG (ITU-T T.81, B.2)."""
    if bytes(data[:2]) != b"\xff\xd8" or bytes(data[-2:]) != b"\xff\xd9":
        raise ProtocolError("frame: is not a whole JPEG")
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker in (0xC0, 0xC1):  # baseline, extended sequential: length, precision, height, width
            return int.from_bytes(data[at + 5 : at + 7], "big"), int.from_bytes(data[at + 7 : at + 9], "big")
        if 0xC0 < marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            raise ProtocolError("frame: is not a baseline JPEG")
        if marker in (0xD8, 0xD9, 0xDA):
            break
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    raise ProtocolError("frame: is a JPEG without a start of frame")
