"""Inputs by the million from a few good ones: bytes turned, moved, cut and joined; JSON and protobuf changed by their
structure."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

INTERESTING = (0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF)
NUMBERS = (0, 1, -1, 0.5, 127, 255, 256, 4095, 4096, 65535, 2**31, 2**32 - 1, 2**53, 2**63, 2**64 - 1, 1e308, -1e400)
WORDS = ("", "front", "shoulder_pan", "../x", "a" * 200, "\x00", "\n", "\x1b[2J", "\u202e", "1e400", "true")
LONGEST = 1 << 16


def mutate(chance: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """`data`, changed in one to eight ways; `others` are what it may be joined with."""
    for _ in range(1 << chance.randrange(4)):
        data = chance.choice(WAYS)(chance, data, others)
    return data[:LONGEST]


def _flip(chance: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    return _put(data, _at(chance, data), lambda byte: byte ^ 1 << chance.randrange(8))


def _set(chance: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    return _put(data, _at(chance, data), lambda byte: chance.choice(INTERESTING))


def _step(chance: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    return _put(data, _at(chance, data), lambda byte: (byte + chance.choice((-1, 1))) & 0xFF)


def _insert(chance: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    at = _at(chance, data)
    return data[:at] + chance.randbytes(chance.choice((1, 2, 4, 16))) + data[at:]


def _remove(chance: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    at = _at(chance, data)
    return data[:at] + data[at + chance.choice((1, 2, 4, 64)) :]


def _repeat(chance: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    start, end = sorted((_at(chance, data), _at(chance, data)))
    return data[:end] + data[start:end] * chance.randrange(1, 4) + data[end:]


def _cut(chance: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    return data[: _at(chance, data)]


def _join(chance: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    other = chance.choice(others)
    return data[: _at(chance, data)] + other[_at(chance, other) :]


def _structure(chance: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """One node of what reads as JSON replaced or removed; else one field of what reads as protobuf."""
    if data[:1] in (b"{", b"["):
        try:
            return json.dumps(_change(chance, json.loads(data))).encode()
        except (ValueError, RecursionError):
            return data
    return _field(chance, data)


WAYS: tuple[Callable[[random.Random, bytes, Sequence[bytes]], bytes], ...] = (
    *(_flip, _set, _step, _insert, _remove, _repeat, _cut, _join),
    *(_structure, _structure, _structure),
)


def _at(chance: random.Random, data: bytes) -> int:
    return chance.randrange(len(data)) if data else 0


def _put(data: bytes, at: int, change: Callable[[int], int]) -> bytes:
    return data[:at] + bytes([change(data[at])]) + data[at + 1 :] if data else data


def _change(chance: random.Random, node: Any) -> Any:
    """JSON: go down at random, and change what is found there."""
    inside = isinstance(node, dict | list) and len(node) > 0 and chance.random() < 0.8
    if not inside:
        return chance.choice((None, True, [], {}, chance.choice(NUMBERS), chance.choice(WORDS), [node] * 3))
    if isinstance(node, dict):
        key = chance.choice(list(node))
        if chance.random() < 0.2:
            return {name: each for name, each in node.items() if name != key} | {chance.choice(WORDS): node[key]}
        return node | {key: _change(chance, node[key])}
    at = chance.randrange(len(node))
    return [*node[:at], *([] if chance.random() < 0.2 else [_change(chance, node[at])]), *node[at + 1 :]]


def _field(chance: random.Random, data: bytes) -> bytes:
    """Protobuf: go down into fields at random, change one, and write all lengths anew."""
    fields = _fields(data)
    if not fields:
        return chance.randbytes(8)
    at = chance.randrange(len(fields))
    number, kind, content = fields[at]
    if kind == 2 and content and chance.random() < 0.7:
        changed = (number, kind, _field(chance, content) if _fields(content) else chance.randbytes(len(content)))
    elif kind == 0:
        changed = (number, 0, _varint(chance.choice([n for n in NUMBERS if isinstance(n, int) and n >= 0])))
    else:
        changed = (chance.randrange(1, 16), kind, content)
    some = chance.choice(([changed], [], [changed, changed], [fields[at], changed]))
    return b"".join(_write(*field) for field in [*fields[:at], *some, *fields[at + 1 :]])


def _fields(data: bytes) -> list[tuple[int, int, bytes]]:
    """Number, wire type and content of each field; none when `data` is not protobuf."""
    fields, at = [], 0
    while at < len(data):
        key, kind = data[at] >> 3, data[at] & 7
        at += 1
        end = at
        while end < len(data) and data[end] & 0x80:
            end += 1
        end += 1
        if key == 0 or kind not in (0, 1, 2, 5) or end > len(data):
            return []
        if kind == 0:
            content = data[at:end]
        else:
            length = {1: 8, 5: 4}.get(kind, 0)
            if kind == 2:
                length = sum((byte & 0x7F) << 7 * index for index, byte in enumerate(data[at:end]))
                at = end
            end = at + length
            content = data[at:end]
        if end > len(data):
            return []
        fields.append((key, kind, content))
        at = end
    return fields


def _write(number: int, kind: int, content: bytes) -> bytes:
    return bytes([number << 3 & 0xFF | kind]) + (_varint(len(content)) if kind == 2 else b"") + content


def _varint(number: int) -> bytes:
    encoded = b""
    while number > 0x7F:
        encoded += bytes([number & 0x7F | 0x80])
        number >>= 7
    return encoded + bytes([number])
