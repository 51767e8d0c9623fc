"""Which other files an ONNX graph reads: tensors may say that their data lies elsewhere (onnx.proto, TensorProto)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

Message: TypeAlias = Mapping[int, str]  # of the fields that lead to tensors: number -> kind of message

_MESSAGES: Mapping[str, Message] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
_DEEPEST = 64
_FIXED = {1: 8, 5: 4}  # wire type -> bytes


def external_files(graph: memoryview) -> set[str]:
    """The `location` of every tensor in `graph` whose data is in another file.

    Raises ValueError for what is no graph.
    """
    return set(_locations(graph, "model", 0))


def _locations(data: memoryview, kind: str, depth: int) -> Iterator[str]:
    if depth > _DEEPEST:
        raise ValueError("is nested too deeply")
    for number, content in _fields(data):
        below = _MESSAGES[kind].get(number)
        if below == "entry":
            entry = dict(_fields(content))
            if bytes(entry.get(1, b"")) == b"location":
                yield bytes(entry.get(2, b"")).decode("utf-8")
        elif below is not None:
            yield from _locations(content, below, depth + 1)


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The fields of a message that have a length, each with what is in it."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            _, at = _varint(data, at)
        elif wire == 2:
            length, at = _varint(data, at)
            if at + length > len(data):
                raise ValueError("is cut off")
            yield number, data[at : at + length]
            at += length
        elif wire in _FIXED:
            at += _FIXED[wire]
        else:
            raise ValueError(f"has a field of wire type {wire}")


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise ValueError("is cut off")
