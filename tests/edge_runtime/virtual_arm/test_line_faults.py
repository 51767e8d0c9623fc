"""Every fault that the virtual arm can put on its line, met by both of its readers: the bus and the loop's port.

Whatever comes, a position is either the servo's own or not there; what can be lived through is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Protocol

import pytest

from edge_runtime._realtime import ActionRing, ActuatorLoop, FeetechPort
from edge_runtime.motors.bus import Bus
from edge_runtime.virtual_arm.bus import VirtualBus
from edge_runtime.virtual_arm.faults import LINE_FAULTS, REQUEST_FAULTS

IDS = (1, 2, 3, 4, 5, 6)
POSITIONS = {1: 1111, 2: 2222, 3: 1333, 4: 2444, 5: 1555, 6: 2666}
TIMEOUT_S = 0.05
PATIENT_S = 10.0  # where an answer will come
ROUNDS = 8
# Those through which all six are heard, each time: the frames are whole, whatever is around them.
HARMLESS = ("foreign", "junk", "bytewise", "order")


class Reader(Protocol):
    def read(self) -> dict[int, int]:
        """The positions heard just now, by id."""

    @property
    def flags(self) -> dict[int, int]:
        """The error bits seen so far, by id."""


class BusReader:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def read(self) -> dict[int, int]:
        return self._bus.sync_read("Present_Position", IDS)

    @property
    def flags(self) -> dict[int, int]:
        return {servo: bits for servo, bits in self._bus.flags.items() if bits}


class LoopReader:
    """A loop of six joints whose degrees are ticks around 2048, on the clock of the test."""

    def __init__(self, fd: int, echo: bool, timeout_s: float) -> None:
        self._port = FeetechPort(
            fd, IDS, [0] * 6, [0] * 6, [4096] * 6, [0] * 6, timeout_ns=int(timeout_s * 1e9), echo=echo
        )
        self._loop = ActuatorLoop(ActionRing(50, 6), self._port, fps=30, max_missed_replies=1000)
        self._loop.prime([(POSITIONS[servo] - 2048) * 360 / 4095 for servo in IDS])
        self._now_ns = 0

    def read(self) -> dict[int, int]:
        self._now_ns += 1_000_000_000
        self._loop.tick(self._now_ns)
        record = self._loop.record
        ticks = [round(float(degrees) * 4095 / 360 + 2048) for degrees in record.positions]
        old = {servo: tick for servo, tick, age in zip(IDS, ticks, record.ages_s, strict=True) if math.isfinite(age)}
        assert old.items() <= POSITIONS.items()  # nor is one that is remembered ever wrong
        return {servo: old[servo] for servo, age in zip(IDS, record.ages_s, strict=True) if age == 0}

    @property
    def flags(self) -> dict[int, int]:
        return {servo: bits for servo, bits in zip(IDS, self._port.all_errors, strict=True) if bits}


@pytest.fixture
def arm() -> Iterator[VirtualBus]:
    with VirtualBus(seed=3) as arm:
        arm.place(list(POSITIONS.values()))
        yield arm


Make = Callable[..., Reader]


@pytest.fixture(params=["bus", "loop"])
def reader(request: pytest.FixtureRequest, arm: VirtualBus) -> Iterator[Make]:
    """Makes the one or the other, once the line is as it is to be."""
    with ExitStack() as stack:

        def make(*, echo: bool = False, timeout_s: float = PATIENT_S) -> Reader:
            bus = stack.enter_context(Bus(arm.path, timeout_s=timeout_s, echo=echo))
            return LoopReader(bus.lend(), echo, timeout_s) if request.param == "loop" else BusReader(bus)

        yield make


@pytest.mark.parametrize("rate", [0.2, 1.0])
@pytest.mark.parametrize("fault", [*LINE_FAULTS, *(fault for fault in REQUEST_FAULTS if fault != "echo")])
def test_a_position_is_true_or_not_there(arm: VirtualBus, reader: Make, fault: str, rate: float) -> None:
    reading = reader(timeout_s=0.5 if fault in HARMLESS else TIMEOUT_S)
    arm.inject({"fault": fault, "rate": rate})
    rounds = 3 if rate == 1 else ROUNDS
    heard = [reading.read() for _ in range(rounds)]
    assert all(found.items() <= POSITIONS.items() for found in heard)
    if fault in HARMLESS and not (fault == "order" and isinstance(reading, LoopReader)):
        assert heard == [POSITIONS] * rounds
    elif rate < 1 or fault == "order":  # to the loop an answer out of turn is an old one: it asks for it again
        assert sum(map(len, heard)) >= rounds * 6 * (0.8 if rate < 1 else 0.5)
    arm.inject({"fault": "clear"})
    assert POSITIONS in (reading.read() for _ in range(20))  # an answer of before may still be on the line


def test_echo_is_told_from_answers(arm: VirtualBus, reader: Make) -> None:
    arm.inject({"fault": "echo"})
    reading = reader(echo=True)
    assert [reading.read() for _ in range(ROUNDS)] == [POSITIONS] * ROUNDS


@pytest.mark.parametrize(("bits", "value"), [("overload", 32), ("over-temperature", 4), ("voltage", 1)])
@pytest.mark.parametrize("ids", [(4,), IDS])
def test_a_status_error_is_kept_and_the_position_used(
    arm: VirtualBus, reader: Make, bits: str, value: int, ids: tuple[int, ...]
) -> None:
    reading = reader()
    assert reading.read() == POSITIONS
    assert reading.flags == {}
    arm.inject({"fault": "flags", "ids": list(ids), "bits": bits})
    assert [reading.read() for _ in range(3)] == [POSITIONS] * 3
    assert reading.flags == dict.fromkeys(ids, value)


def test_all_faults_at_once(arm: VirtualBus, reader: Make) -> None:
    reading = reader(timeout_s=TIMEOUT_S)
    for fault in (*LINE_FAULTS, "order"):
        arm.inject({"fault": fault, "rate": 0.2})
    for _ in range(ROUNDS):
        assert reading.read().items() <= POSITIONS.items()
