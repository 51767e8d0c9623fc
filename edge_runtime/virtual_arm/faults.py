"""What can go wrong on a servo bus, as orders that can be given while it runs."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from edge_runtime.errors import ConfigError
from edge_runtime.motors.feetech import ERROR_BITS, REGISTERS, frame

# name -> what it does; the first two groups take ids, rate (0..1) and count (how often at most)
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
REQUEST_FAULTS = {
    "order": "the answers to a sync read come in reverse order",
    "echo": "the line returns every byte that is sent",
}
ACTS = {
    "flags": "status error: bits is a number or one of the names; 0 takes them away",
    "register": "put value into register name",
    "reboot": "the servo restarts, with torque off",
    "power": "on: false takes the servos' supply, and leaves the adapter",
    "unplug": "the port disappears",
    "replug": "the port comes back",
    "clear": "all of these end; ports and power come back",
}
_KEYS = {
    **dict.fromkeys(LINE_FAULTS, ("ids", "rate", "count", "on", "delay_s")),
    **dict.fromkeys(REQUEST_FAULTS, ("on", "rate", "count")),
    "flags": ("ids", "bits"),
    "register": ("ids", "name", "value"),
    "reboot": ("ids",),
    "power": ("on",),
    **dict.fromkeys(("unplug", "replug", "clear"), ()),
}
_FOREIGNER = 99  # the id of a servo that is not there
_NAMED_BITS = {name: bit for bit, name in ERROR_BITS.items()}


@dataclass(frozen=True)
class Order:
    """A fault that was checked: `kind` is a word of the three tables above."""

    kind: str
    ids: frozenset[int]
    rate: float = 1.0
    count: int | None = None
    on: bool = True
    delay_s: float = 0.0
    bits: int = 0
    name: str = ""
    value: int = 0


def parse(order: Mapping[str, Any], servos: Collection[int]) -> Order:
    """`order` as JSON has it, such as {"fault": "corrupt", "ids": [3], "rate": 0.1}; ConfigError names the key."""
    kind = order.get("fault")
    if not isinstance(kind, str) or kind not in _KEYS:
        near = get_close_matches(str(kind), _KEYS, 1)
        raise ConfigError(f"fault: {kind!r} is not one of {', '.join(_KEYS)}" + (f"; {near[0]}?" if near else ""))
    allowed = _KEYS[kind]
    for key in order:
        if key != "fault" and key not in allowed:
            raise ConfigError(f"{key}: {kind} takes {', '.join(allowed) or 'nothing'}")
    for key in {"flags": ("bits",), "register": ("name", "value"), "power": ("on",)}.get(kind, ()):
        if key not in order:
            raise ConfigError(f"{key}: {kind} needs it")
    name = _register(order["name"]) if kind == "register" else ""
    return Order(
        kind,
        ids=_ids(order.get("ids", list(servos)), servos),
        rate=_number(order, "rate", 1.0, 0, 1),
        count=None if order.get("count") is None else int(_number(order, "count", 0, 0, 1_000_000)),
        on=_truth(order.get("on", True)),
        delay_s=_number(order, "delay_s", 0.02 if kind == "late" else 0.0, 0, 10),
        bits=_bits(order.get("bits", 0)),
        name=name,
        value=_value(order, name) if name else 0,
    )


class Faults:
    """The line and request faults in force, and the dice."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._orders: dict[str, Order] = {}
        self._left: dict[str, int] = {}

    def set(self, order: Order) -> None:
        """Put `order` into force in place of an earlier one of its kind, or end that."""
        self._orders.pop(order.kind, None)
        if order.on:
            self._orders[order.kind] = order
            self._left[order.kind] = -1 if order.count is None else order.count

    def clear(self) -> None:
        self._orders.clear()

    def strikes(self, kind: str, servo: int | None = None) -> Order | None:
        """The order of this kind, if it is in force and hits this time."""
        order = self._orders.get(kind)
        if order is None or (servo is not None and servo not in order.ids) or not self._left[kind]:
            return None
        if order.rate < 1 and self._random.random() >= order.rate:
            return None
        self._left[kind] -= self._left[kind] > 0
        return order

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
