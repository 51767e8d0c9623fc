"""LeRobot's four protobuf messages, read and written by hand: two fields, and no second `transport` package."""

from __future__ import annotations

from collections.abc import Iterator

from edge_runtime.errors import ProtocolError

SERVICE = "transport.AsyncInference"
BEGIN, MIDDLE, END = 1, 2, 3
EMPTY = b""


def piece(message: bytes) -> tuple[int, memoryview]:
    """`transfer_state` and `data` of an Observation. Raises ProtocolError."""
    state, data = 0, memoryview(b"")
    for field, value in _fields(memoryview(message)):
        if field == 1 and isinstance(value, int):
            state = value
        elif field == 2 and isinstance(value, memoryview):
            data = value
    return state, data


def setup(message: bytes) -> memoryview:
    """`data` of a PolicySetup. Raises ProtocolError."""
    data = memoryview(b"")
    for field, value in _fields(memoryview(message)):
        if field == 1 and isinstance(value, memoryview):
            data = value
    return data


def actions(data: bytes) -> bytes:
    """An Actions message around `data`."""
    length, size = len(data), bytearray()
    while length > 0x7F:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    return b"\x0a" + bytes([*size, length]) + data


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield tag >> 3, value
        elif kind == 2:
            length, at = _varint(message, at)
            if length > len(message) - at:
                raise ProtocolError("message: ends too early")
            yield tag >> 3, message[at : at + length]
            at += length
        else:
            raise ProtocolError("message: is not one of LeRobot's")


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            break
        value |= (message[at] & 0x7F) << shift
        at += 1
        if message[at - 1] < 0x80:
            return value, at
    raise ProtocolError("message: a number does not end")
