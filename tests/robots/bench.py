"""The bench that the arm's tests share: time that moves only when somebody waits, and looks into the servos."""

import threading

from edge_runtime.motors.clock import Clock
from edge_runtime.virtual_arm.bus import VirtualBus

IDS = range(1, 7)
POSE = [1500, 1900, 2100, 2200, 2300, 2500]
CALM = threading.Event()  # never set


class Time(Clock):
    """A clock that moves only when somebody waits; a Hurry is then set at its time."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    def now(self) -> float:
        return self.seconds

    def wait(self, seconds: float, until: threading.Event) -> bool:
        self.seconds += seconds
        if isinstance(until, Hurry) and self.seconds >= until.at:
            until.set()
        return until.is_set()


class Hurry(threading.Event):
    """Is set at `at`, by the clock that waits for it."""

    def __init__(self, at: float = 1e9) -> None:
        super().__init__()
        self.at = at


def sequence(arm: VirtualBus, *registers: str) -> list[str]:
    """The instructions on the bus that concern `registers`, runs of the same in one."""
    words = [
        f"{'write' if 'WRITE' in entry.instruction else 'read'} {register}"
        for entry in arm.log
        for register in entry.registers
        if entry.request is None and register in registers
    ]
    return [word for before, word in zip(["", *words], words, strict=False) if word != before]


def held(arm: VirtualBus, name: str) -> list[int]:
    return arm.values(name)
