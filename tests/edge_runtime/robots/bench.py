"""The bench that the arm's tests share: time that moves only when somebody waits, and looks into the servos."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from edge_runtime.errors import BusError
from edge_runtime.robots.so_follower import SOFollower
from edge_runtime.virtual_arm.chain import ServoChain
from edge_runtime.virtual_arm.port import VirtualClock, VirtualPort

IDS = range(1, 7)
POSE = [1500, 1900, 2100, 2200, 2300, 2500]
CALM = threading.Event()  # never set


class Time(VirtualClock):
    """A clock that moves only when somebody waits; a Hurry is then set at its time."""

    def wait(self, seconds: float, until: threading.Event) -> bool:
        super().wait(seconds, until)
        if isinstance(until, Hurry) and self.seconds >= until.at:
            until.set()
        return until.is_set()


class Hurry(threading.Event):
    """Is set at `at`, by the clock that waits for it."""

    def __init__(self, at: float = 1e9) -> None:
        super().__init__()
        self.at = at


def sequence(arm: ServoChain, *registers: str) -> list[str]:
    """The instructions on the bus that concern `registers`, runs of the same in one."""
    words = [
        f"{'write' if 'WRITE' in entry.instruction else 'read'} {register}"
        for entry in arm.log
        for register in entry.registers
        if entry.request is None and register in registers
    ]
    return [word for before, word in zip(["", *words], words, strict=False) if word != before]


def held(arm: ServoChain, name: str) -> list[int]:
    return arm.values(name)


class FailingPort(VirtualPort):
    """Asks `fail` about each request first, with its number and bytes, and what the line makes of it.

    `ok`, `deaf` (no servo hears it), `silent` (no answer comes back) or `full` (the port does not take it).
    """

    def __init__(self, chain: ServoChain, clock: Time) -> None:
        super().__init__(chain, clock)
        self.requests = 0
        self.fail: Callable[[int, bytes], str] = lambda number, data: "ok"

    def write(self, data: bytes) -> None:
        self.requests += 1
        how = self.fail(self.requests, data)
        if how == "full":
            raise BusError("takes no more bytes")
        if how != "deaf":
            super().write(data)
        if how == "silent":
            self._due.clear()


@dataclass
class Stage:
    """An SO-101 on such a port: all of its start and stop in one process, in no time."""

    arm: ServoChain
    port: FailingPort
    clock: Time
    robot: SOFollower
