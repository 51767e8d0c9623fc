"""The bench that the arm's tests share: time that moves only when somebody waits, and looks into the servos."""

import threading

from edge_runtime.virtual_arm.bus import VirtualBus

IDS = range(1, 7)
POSE = [1500, 1900, 2100, 2200, 2300, 2500]
CALM = threading.Event()  # never set


class Time:
    """A clock that moves only when somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Hurry(threading.Event):
    """Waiting takes no time but the clock's; set by itself at `at`."""

    def __init__(self, clock: Time, at: float = 1e9) -> None:
        super().__init__()
        self._clock, self._at = clock, at

    def wait(self, timeout: float | None = None) -> bool:
        self._clock.now += timeout or 0.0
        if self._clock.now >= self._at:
            self.set()
        return self.is_set()


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
