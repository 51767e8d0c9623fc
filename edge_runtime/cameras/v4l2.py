"""What a V4L2 device offers, asked of its driver: OpenCV tells only what the driver took."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

# linux/videodev2.h: VIDIOC_ENUM_FMT, VIDIOC_ENUM_FRAMESIZES, VIDIOC_ENUM_FRAMEINTERVALS and the sizes of their structs.
_FORMATS, _FORMATS_SIZE = 0xC0405602, 64
_SIZES, _SIZES_SIZE = 0xC02C564A, 44
_INTERVALS, _INTERVALS_SIZE = 0xC034564B, 52
_VIDEO_CAPTURE = 1
_DISCRETE = 1
_MOST = 64  # entries of one kind: a driver that never ends must not hold us

Ioctl = Callable[[int, int, bytearray], object]


@dataclass(frozen=True)
class Offer:
    """One format and size, with the rates that go with it."""

    fourcc: str
    width: int
    height: int
    fps: tuple[float, ...]

    def __str__(self) -> str:
        return f"{self.fourcc} {self.width}x{self.height} at {', '.join(f'{fps:g}' for fps in self.fps)} fps"


def offers(path: str, ioctl: Ioctl = fcntl.ioctl) -> list[Offer]:
    """Every discrete format, size and rate of the device at `path`; empty when it does not say."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    except OSError:
        return []
    try:
        return list(_offers(fd, ioctl))
    finally:
        os.close(fd)


def nearest(found: Iterable[Offer], width: int | None, height: int | None, most: int = 5) -> str:
    """The offers of the size asked for, or else those nearest to it, for a sentence."""
    ranked = sorted(found, key=lambda offer: abs(offer.width - (width or 0)) + abs(offer.height - (height or 0)))
    same = [offer for offer in ranked if (offer.width, offer.height) == (width, height)]
    return "; ".join(str(offer) for offer in (same or ranked)[:most])


def _offers(fd: int, ioctl: Ioctl) -> Iterator[Offer]:
    for entry in _entries(fd, ioctl, _FORMATS, _FORMATS_SIZE, _VIDEO_CAPTURE):
        (pixel_format,) = struct.unpack_from("=I", entry, 44)
        fourcc = pixel_format.to_bytes(4, "little").decode("ascii", "replace")
        for size in _entries(fd, ioctl, _SIZES, _SIZES_SIZE, pixel_format):
            kind, width, height = struct.unpack_from("=III", size, 8)
            if kind == _DISCRETE:
                yield Offer(fourcc, width, height, tuple(_rates(fd, ioctl, pixel_format, width, height)))


def _rates(fd: int, ioctl: Ioctl, pixel_format: int, width: int, height: int) -> Iterator[float]:
    for entry in _entries(fd, ioctl, _INTERVALS, _INTERVALS_SIZE, pixel_format, width, height):
        kind, numerator, denominator = struct.unpack_from("=III", entry, 16)
        if kind == _DISCRETE and numerator:
            yield denominator / numerator


def _entries(fd: int, ioctl: Ioctl, request: int, size: int, *given: int) -> Iterator[bytearray]:
    """The driver's answers for index 0, 1, … until it has no more."""
    for index in range(_MOST):
        entry = bytearray(size)
        struct.pack_into(f"={1 + len(given)}I", entry, 0, index, *given)
        try:
            ioctl(fd, request, entry)
        except OSError:
            return
        yield entry
