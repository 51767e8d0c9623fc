"""Reads a pickle as data: a global becomes a name, a call becomes a record, and nothing is imported or called."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from edge_runtime.errors import ProtocolError

MOST_OPCODES = 4096
MOST_MEMOS = 1024
_MARK = object()


@dataclass(frozen=True)
class Name:
    """A global that a pickle names; it is never looked up."""

    module: str
    name: str


@dataclass(eq=False)
class Record:
    """What a pickle would make by calling `callee`: never called. `state` is what BUILD would set."""

    callee: Name
    arguments: tuple[Any, ...]
    state: Any = None


def read(data: bytes | memoryview) -> Any:
    """What a pickle of protocol 4 or 5 describes: numbers, strings, lists, tuples, dicts, `Name` and `Record`.

    Byte strings are views of `data`. Raises ProtocolError for any other opcode, for more than `MOST_OPCODES` or
    `MOST_MEMOS`, for a length beyond the end, and for a stack that does not fit.
    """
    try:
        return _Reader(memoryview(data)).read()
    except (IndexError, ValueError, TypeError, struct.error) as error:  # a stack or a text that does not hold
        raise ProtocolError("pickle: is damaged") from error


class _Reader:
    """Its stack, its memo, and where it is in the buffer."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0
        self._stack: list[Any] = []
        self._memo: list[Any] = []

    def read(self) -> Any:
        for _ in range(MOST_OPCODES):
            opcode = self._take(1)[0]
            if opcode == _STOP:
                (value,) = self._stack
                return value
            step = _OPCODES.get(opcode)
            if step is None:
                raise ProtocolError(f"pickle: opcode 0x{opcode:02x} is not among those that LeRobot's client sends")
            step(self)
        raise ProtocolError(f"pickle: has more than {MOST_OPCODES} opcodes")

    def _take(self, length: int) -> memoryview:
        if length > len(self._data) - self._at:
            raise ProtocolError("pickle: ends too early")
        self._at += length
        return self._data[self._at - length : self._at]

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _since_mark(self) -> list[Any]:
        at = len(self._stack) - 1
        while self._stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise ProtocolError("pickle: has no mark")
        items = self._stack[at + 1 :]
        del self._stack[at:]
        return items

    def _protocol(self) -> None:
        if self._take(1)[0] not in (4, 5):
            raise ProtocolError("pickle: its protocol is neither 4 nor 5")

    def _skip_frame(self) -> None:
        self._take(8)

    def _text(self, length: str) -> None:
        self._push(str(self._take(self._number(length)), "utf-8"))

    def _bytes(self, length: str) -> None:
        self._push(self._take(self._number(length)))

    def _long(self) -> None:
        length = self._take(1)[0]
        if length > 8:
            raise ProtocolError("pickle: an integer has more than 8 bytes")
        self._push(int.from_bytes(self._take(length), "little", signed=True))

    def _memoize(self) -> None:
        if len(self._memo) == MOST_MEMOS:
            raise ProtocolError(f"pickle: has more than {MOST_MEMOS} memos")
        self._memo.append(self._stack[-1])

    def _tuple(self, length: int) -> None:
        if length > len(self._stack):
            raise ProtocolError("pickle: a tuple is longer than the stack")
        items = tuple(self._stack[len(self._stack) - length :])
        del self._stack[len(self._stack) - length :]
        self._push(items)

    def _append(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not list:
            raise ProtocolError("pickle: appends to what is not a list")
        target += items

    def _set(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not dict or len(items) % 2 or not all(type(key) in (str, int) for key in items[::2]):
            raise ProtocolError("pickle: sets what is not a key and a value of a dict")
        target.update(zip(items[::2], items[1::2], strict=True))

    def _global(self) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if type(module) is not str or type(name) is not str:
            raise ProtocolError("pickle: a global's name is not a text")
        self._push(Name(module, name))

    def _call(self) -> None:
        arguments, callee = self._stack.pop(), self._stack.pop()
        if type(callee) is not Name or type(arguments) is not tuple:
            raise ProtocolError("pickle: calls what is not a global")
        self._push(Record(callee, arguments))

    def _build(self) -> None:
        state, target = self._stack.pop(), self._stack[-1]
        if type(target) is not Record:
            raise ProtocolError("pickle: sets the state of what is not an object")
        target.state = state


_STOP = ord(".")
_OPCODES: dict[int, Callable[[_Reader], None]] = {
    0x80: _Reader._protocol,
    0x95: _Reader._skip_frame,  # FRAME: only a hint for buffered reading
    0x8C: lambda r: r._text("<B"),
    ord("X"): lambda r: r._text("<I"),
    ord("C"): lambda r: r._bytes("<B"),
    ord("B"): lambda r: r._bytes("<I"),
    0x8E: lambda r: r._bytes("<Q"),
    0x96: lambda r: r._bytes("<Q"),  # BYTEARRAY8
    0x94: _Reader._memoize,
    ord("h"): lambda r: r._push(r._memo[r._take(1)[0]]),
    ord("j"): lambda r: r._push(r._memo[r._number("<I")]),
    0x93: _Reader._global,
    0x81: _Reader._call,  # NEWOBJ
    ord("R"): _Reader._call,
    ord("b"): _Reader._build,
    ord(")"): lambda r: r._push(()),
    0x85: lambda r: r._tuple(1),
    0x86: lambda r: r._tuple(2),
    0x87: lambda r: r._tuple(3),
    ord("t"): lambda r: r._push(tuple(r._since_mark())),
    ord("}"): lambda r: r._push({}),
    ord("s"): lambda r: r._set([r._stack.pop(-2), r._stack.pop()]),
    ord("u"): lambda r: r._set(r._since_mark()),
    ord("]"): lambda r: r._push([]),
    ord("a"): lambda r: r._append([r._stack.pop()]),
    ord("e"): lambda r: r._append(r._since_mark()),
    ord("("): lambda r: r._push(_MARK),
    ord("G"): lambda r: r._push(r._number(">d")),
    ord("J"): lambda r: r._push(r._number("<i")),
    ord("K"): lambda r: r._push(r._number("<B")),
    ord("M"): lambda r: r._push(r._number("<H")),
    0x8A: _Reader._long,
    0x88: lambda r: r._push(True),
    0x89: lambda r: r._push(False),
    ord("N"): lambda r: r._push(None),
}
