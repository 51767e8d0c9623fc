"""What can go wrong on a servo bus, as orders that can be given while it runs."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from edge_runtime.errors import ConfigError
from edge_runtime.motors.feetech import ERROR_BITS, REGISTERS, TICKS_PER_TURN, frame
from edge_runtime.virtual_arm.servos import pack

# name -> what it does; the first three groups take rate (0..1) and count (how often at most), the first two also ids
LINE_FAULTS = {
    "deaf": "the servo does not hear the request",
    "silent": "the servo hears, does as it is told, and does not answer",
    "corrupt": "one byte of the answer is changed",
    "truncate": "the answer ends early",
    "late": "the answer comes delay_s later",
    "foreign": "an answer nobody asked for, of another servo and another length, comes before it",
    "junk": "random bytes come before it",
    "bytewise": "its bytes come one at a time, delay_s apart",
}
SERVO_FAULTS = {
    "lie": "the servo answers value where register name is read (Present_Position unless it says so)",
    "lost_write": "the servo answers a write, of register name if that is given, and does not take it",
}
REQUEST_FAULTS = {
    "order": "the answers to a sync read come in reverse order",
    "echo": "the line returns every byte that is sent",
    "lost_echo": "a line that echoes does not return a request",
}
LASTING = {**LINE_FAULTS, **SERVO_FAULTS, **REQUEST_FAULTS}
ACTS = {
    "flags": "status error: bits is a number or one of the names; 0 takes them away",
    "register": "put value into register name",
    "reboot": "the servo restarts, with torque off",
    "factory": "the servo forgets its id, its calibration and all else, as a new one",
    "power": "on: false takes the servos' supply, and leaves the adapter",
    "detach": "the servo is taken off the cable, and has no supply",
    "attach": "it is put back",
    "push": "something pushes the joint with force, in parts of the servo's stall force, -2..2; 0 ends it",
    "hand": "a hand turns a joint without torque to position (counts of the shaft) and holds it; on: false lets go",
    "unplug": "the port disappears",
    "replug": "the port comes back",
    "clear": "all of these end; ports and power come back",
}
KEYS: dict[str, tuple[str, ...]] = {  # what each takes
    **dict.fromkeys(LINE_FAULTS, ("ids", "rate", "count", "on")),
    **dict.fromkeys(("late", "bytewise"), ("ids", "rate", "count", "on", "delay_s")),
    "lie": ("ids", "rate", "count", "on", "name", "value"),
    "lost_write": ("ids", "rate", "count", "on", "name"),
    **dict.fromkeys(REQUEST_FAULTS, ("on", "rate", "count")),
    "flags": ("ids", "bits"),
    "register": ("ids", "name", "value"),
    **dict.fromkeys(("reboot", "factory", "detach", "attach"), ("ids",)),
    "power": ("on",),
    "push": ("ids", "force"),
    "hand": ("ids", "position", "on"),
    **dict.fromkeys(("unplug", "replug", "clear"), ()),
}
_NEEDED = {
    "flags": ("bits",),
    "register": ("name", "value"),
    "lie": ("value",),
    "power": ("on",),
    "push": ("force",),
    "hand": ("position",),
}
_FOREIGNER = 99  # the id of a servo that is not there
_NAMED_BITS = {name: bit for bit, name in ERROR_BITS.items()}


@dataclass(frozen=True)
class Order:
    """A fault that was checked: `kind` is a word of the four tables above."""

    kind: str
    ids: frozenset[int]
    rate: float = 1.0
    count: int | None = None
    on: bool = True
    delay_s: float = 0.0
    bits: int = 0
    name: str = ""
    value: int = 0
    force: float = 0.0
    position: float = 0.0

    def concerns(self, address: int, count: int) -> bool:
        """Whether its register, if it has one, lies in the `count` bytes from `address`."""
        if not self.name:
            return True
        register = REGISTERS[self.name]
        return address <= register.address and register.address + register.size <= address + count


def parse(order: Mapping[str, Any], servos: Collection[int]) -> Order:
    """`order` as JSON has it, such as {"fault": "corrupt", "ids": [3], "rate": 0.1}; ConfigError names the key."""
    kind = order.get("fault")
    if not isinstance(kind, str) or kind not in KEYS:
        near = get_close_matches(str(kind), KEYS, 1)
        raise ConfigError(f"fault: {kind!r} is not one of {', '.join(KEYS)}" + (f"; {near[0]}?" if near else ""))
    allowed = KEYS[kind]
    for key in order:
        if key != "fault" and key not in allowed:
            raise ConfigError(f"{key}: {kind} takes {', '.join(allowed) or 'nothing'}")
    on = _truth(order.get("on", True))
    for key in _NEEDED.get(kind, ()):
        if key not in order and on:
            raise ConfigError(f"{key}: {kind} needs it")
    named = order.get("name", "Present_Position" if kind == "lie" else None)
    name = "" if named is None else _register(named)
    return Order(
        kind,
        ids=_ids(order.get("ids", list(servos)), servos),
        rate=_number(order, "rate", 1.0, 0, 1),
        count=None if order.get("count") is None else int(_number(order, "count", 0, 0, 1_000_000)),
        on=on,
        delay_s=_number(order, "delay_s", 0.02 if kind == "late" else 0.0, 0, 10),
        bits=_bits(order.get("bits", 0)),
        name=name,
        value=_value(order, name) if name else 0,
        force=_number(order, "force", 0.0, -2, 2),
        position=_number(order, "position", 0.0, -TICKS_PER_TURN, 2 * TICKS_PER_TURN),
    )


class Faults:
    """The line and request faults in force, and the dice."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._orders: dict[tuple[str, str], Order] = {}  # by kind and register
        self._left: dict[Order, int] = {}

    def set(self, order: Order) -> None:
        """Put `order` into force in place of an earlier one of its kind and register, or end that."""
        self._left.pop(self._orders.pop((order.kind, order.name), order), None)
        if order.on:
            self._orders[order.kind, order.name] = order
            self._left[order] = -1 if order.count is None else order.count

    def clear(self) -> None:
        self._orders.clear()
        self._left.clear()

    def strikes(self, kind: str, servo: int | None = None, address: int = 0, count: int = 0) -> Order | None:
        """The order of this kind that is in force, about that servo and those registers, and hits this time."""
        return next(self._striking(kind, servo, address, count), None) if self._orders else None

    def _striking(self, kind: str, servo: int | None, address: int, count: int) -> Iterator[Order]:
        for (word, _), order in self._orders.items():
            meant = word == kind and (servo is None or servo in order.ids) and order.concerns(address, count)
            if meant and self._hits(order):
                yield order

    def _hits(self, order: Order) -> bool:
        if not self._left[order] or (order.rate < 1 and self._random.random() >= order.rate):
            return False
        self._left[order] -= self._left[order] > 0
        return True

    def tell(self, servo: int, address: int, data: bytes) -> bytes:
        """What the servo answers instead of `data`, which was read from `address`."""
        for lie in self._striking("lie", servo, address, len(data)):
            start, value = REGISTERS[lie.name].address - address, pack(lie.name, lie.value)
            data = data[:start] + value + data[start + len(value) :]
        return data

    def distort(self, servo: int, raw: bytes) -> bytes:
        """The bytes that come instead of the answer `raw`."""
        before, spoilt = b"", raw
        if self.strikes("foreign", servo):
            before += frame(_FOREIGNER, 0, bytes(len(raw) - 4))
        if self.strikes("junk", servo):
            before += self._random.randbytes(self._random.randrange(1, 12))
        if self.strikes("corrupt", servo):
            spoilt = self._corrupt(spoilt)
        if self.strikes("truncate", servo):
            spoilt = spoilt[: self._random.randrange(1, len(spoilt))]
        return before + spoilt

    def _corrupt(self, raw: bytes) -> bytes:
        place = self._random.randrange(len(raw))
        return raw[:place] + bytes((raw[place] ^ self._random.randrange(1, 256),)) + raw[place + 1 :]


def _ids(value: Any, servos: Collection[int]) -> frozenset[int]:
    if not isinstance(value, list) or not all(type(each) is int for each in value) or not set(value) <= set(servos):
        raise ConfigError(f"ids: {value!r} is not a list of {', '.join(map(str, servos))}")
    return frozenset(value)


def _number(order: Mapping[str, Any], key: str, default: float, low: float, high: float) -> float:
    value = order.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ConfigError(f"{key}: {value!r} is not a number in {low:g}..{high:g}")
    return value


def _value(order: Mapping[str, Any], name: str) -> int:
    """What fits into the register `name`."""
    register = REGISTERS[name]
    least = 0 if register.sign_bit is None else 1 - (1 << register.sign_bit)
    return int(_number(order, "value", 0, least, (1 << 8 * register.size) - 1))


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"on: {value!r} is neither true nor false")
    return value


def _bits(value: Any) -> int:
    if isinstance(value, str) and value in _NAMED_BITS:
        return _NAMED_BITS[value]
    if type(value) is not int or not 0 <= value <= 0x7F:
        raise ConfigError(f"bits: {value!r} is neither in 0..127 nor one of {', '.join(_NAMED_BITS)}")
    return value


def _register(name: Any) -> str:
    if not isinstance(name, str) or name not in REGISTERS:
        near = get_close_matches(str(name), REGISTERS, 1)
        raise ConfigError(f"name: {name!r} is not a register" + (f"; did you mean {near[0]}?" if near else ""))
    return name
