"""Pictures keep their colours and their shape, and a JPEG that lies is refused before it is decoded."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_runtime.errors import ProtocolError
from edge_runtime.wire import frames
from edge_runtime.wire.frames import compress, pixels
from edge_runtime.wire.messages import Frame, Pixels


def picture(height: int = 48, width: int = 64) -> Pixels:
    """Red grows to the right, green downwards, blue is low: no two channels alike."""
    rgb = np.full((height, width, 3), 30, np.uint8)
    rgb[..., 0] = np.linspace(0, 255, width)
    rgb[..., 1] = np.linspace(0, 120, height)[:, None]
    return rgb


def jpeg(data: bytes, height: int = 48, width: int = 64) -> Frame:
    return Frame("static", height, width, "jpeg", data)


def encoded(rgb: Pixels, *flags: int) -> bytes:
    return bytes(cv2.imencode(".jpg", cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR), flags)[1])


def test_raw_pixels_are_the_same_bytes() -> None:
    sent = picture()
    frame = Frame.raw("static", sent)
    assert np.shares_memory(pixels(frame), sent)
    np.testing.assert_array_equal(pixels(frame), sent)


def test_raw_frame_of_a_view_is_made_contiguous() -> None:
    mirrored = picture()[:, ::-1]
    np.testing.assert_array_equal(pixels(Frame.raw("static", mirrored)), mirrored)


def test_jpeg_keeps_red_red() -> None:
    frame = compress(Frame.raw("static", picture()), 95)
    assert frame.encoding == "jpeg"
    assert (frame.height, frame.width) == (48, 64)
    difference = np.abs(pixels(frame).astype(int) - picture())
    assert difference.mean(axis=(0, 1)).max() < 4  # a swap of red and blue costs more than 90


def test_jpeg_keeps_the_colours_of_every_pixel() -> None:
    """Stripes one pixel wide, red and blue: at half the resolution both become purple."""
    striped = np.zeros((48, 64, 3), np.uint8)
    striped[:, ::2, 0] = striped[:, 1::2, 2] = 255
    difference = np.abs(pixels(compress(Frame.raw("static", striped), 93)).astype(int) - striped)
    assert difference.max() < 30


def test_quality_trades_size() -> None:
    noisy = np.random.default_rng(0).integers(0, 256, (96, 96, 3), np.uint8)
    sizes = [len(compress(Frame.raw("static", noisy), quality).data) for quality in (10, 50, 90)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[2] / 2


def test_jpeg_is_never_compressed_again_nor_larger_than_raw() -> None:
    frame = compress(Frame.raw("static", picture()), 50)
    assert compress(frame, 10) is frame
    tiny = Frame.raw("static", picture(4, 4))
    assert compress(tiny, 90) is tiny


def test_orientation_in_exif_does_not_turn_the_picture() -> None:
    data = encoded(picture())
    exif = (
        b"Exif\x00\x00II*\x00\x08\x00\x00\x00\x01\x00\x12\x01\x03\x00\x01\x00\x00\x00\x06\x00\x00\x00\x00\x00\x00\x00"
    )
    turned = data[:2] + b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif + data[2:]
    tempted = cv2.imdecode(np.frombuffer(turned, np.uint8), cv2.IMREAD_COLOR)
    assert tempted is not None
    assert tempted.shape == (64, 48, 3)
    np.testing.assert_array_equal(pixels(jpeg(turned)), pixels(jpeg(data)))


def with_shape(data: bytes, height: int, width: int) -> bytes:
    at = data.index(b"\xff\xc0") + 5
    return data[:at] + height.to_bytes(2, "big") + width.to_bytes(2, "big") + data[at + 4 :]


def with_segments(data: bytes, count: int, content: bytes = b"") -> bytes:
    """Comments put before everything else."""
    return data[:2] + (b"\xff\xfe" + (len(content) + 2).to_bytes(2, "big") + content) * count + data[2:]


def in_scans(data: bytes, count: int) -> bytes:
    """The picture, `count` times over: libjpeg takes each for another pass."""
    scan = data[data.index(b"\xff\xda") : -2]
    return data[:-2] + scan * (count - 1) + data[-2:]


def of_one_component(data: bytes) -> bytes:
    """The scan is of the first component alone, so that others would have to follow."""
    at = data.index(b"\xff\xda")
    length = int.from_bytes(data[at + 2 : at + 4], "big")
    return data[:at] + b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00" + data[at + 2 + length :]


GOOD = encoded(picture())


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        (Frame("static", 48, 64, "raw", bytes(100)), "frame static: 100 bytes are not 64x48 RGB pixels"),
        (jpeg(b""), "not a whole JPEG"),
        (jpeg(GOOD[:-20]), "not a whole JPEG"),
        (jpeg(bytes(cv2.imencode(".png", picture())[1])), "not a whole JPEG"),
        (jpeg(b"\xff\xd8\xff\xd9"), "without a start of frame"),
        (jpeg(b"\xff\xd8" + b"\xff\xe0\x00\x00" * 50 + b"\xff\xd9"), "without a start of frame"),
        (jpeg(GOOD, 64, 48), "frame static: the JPEG is 64x48, declared 48x64"),
        (jpeg(with_shape(GOOD, 20000, 20000)), "frame static: the JPEG is 20000x20000, declared 64x48"),
        (jpeg(with_shape(GOOD, 0, 64)), "frame static: the JPEG is 64x0, declared 64x48"),
        (jpeg(encoded(picture(), cv2.IMWRITE_JPEG_PROGRESSIVE, 1)), "not a baseline JPEG"),
        (jpeg(in_scans(GOOD, 2)), "a JPEG of more than one scan"),
        (jpeg(of_one_component(GOOD)), "a JPEG of more than one scan"),
        (jpeg(GOOD[:-2] + GOOD[2:]), "a JPEG of more than one scan"),
        (jpeg(b"\xff\xd8\xff\xfe\x00\x04\xff\xd9"), "without a start of frame"),
        (jpeg(with_segments(GOOD, 100)), "without a start of frame and of scan in its first 100 segments"),
        (jpeg(with_segments(GOOD, 2, bytes(40_000))), "without a start of frame and of scan"),
    ],
)
def test_data_that_lies_is_refused(frame: Frame, sentence: str) -> None:
    with pytest.raises(ProtocolError, match=sentence):
        pixels(frame)


def test_what_encoders_write_beside_the_picture_is_taken() -> None:
    """Restart markers between rows, comments, grey, and colours at half the resolution."""
    for data in (
        encoded(picture(), cv2.IMWRITE_JPEG_RST_INTERVAL, 1),
        encoded(picture(), cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420),
        bytes(cv2.imencode(".jpg", picture()[..., 0])[1]),
        with_segments(GOOD, 90, b"a camera's own"),
    ):
        assert pixels(jpeg(data)).shape == (48, 64, 3)


def test_another_scan_is_found_wherever_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also across the borders of the blocks that are searched."""
    monkeypatch.setattr(frames, "_BLOCK", 7)
    assert pixels(jpeg(GOOD)).shape == (48, 64, 3)
    with pytest.raises(ProtocolError, match="more than one scan"):
        pixels(jpeg(in_scans(GOOD, 2)))


def test_bomb_is_refused_before_memory_is_taken() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            pixels(jpeg(with_shape(GOOD, 60000, 60000)))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@settings(max_examples=300)
@given(st.integers(0, len(GOOD)), st.integers(0, 8), st.binary(max_size=8))
def test_any_damage_gives_pixels_or_a_refusal(at: int, length: int, insert: bytes) -> None:
    with suppress(ProtocolError):
        assert pixels(jpeg(GOOD[:at] + insert + GOOD[at + length :])).shape == (48, 64, 3)
