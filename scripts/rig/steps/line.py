"""Servos whose k-th transaction fails, and the port to them: in this process on a clock of its own, or behind a pty."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from edge_runtime.errors import BusTimeout
from edge_runtime.motors.feetech import BROADCAST, REGISTERS, Frame, Instruction, encode
from edge_runtime.virtual_arm.bus import VirtualBus
from edge_runtime.virtual_arm.chain import Heard
from edge_runtime.virtual_arm.port import VirtualClock, VirtualPort
from edge_runtime.virtual_arm.servos import VirtualServo

BACK_S = {"EIO": 0.3, "supply": 1.0}  # until the adapter is plugged in again, and until the servos have a supply
LIE = 3900  # counts: beyond the range of most joints, and far from where any of them is
_GOAL = REGISTERS["Goal_Position"].address
_PRESENT = REGISTERS["Present_Position"].address


class Killed(BaseException):
    """The process is gone, as by SIGKILL: not an error that the product could catch and act on."""


class Goals(NamedTuple):
    """One write of goals, as the servos have it: whether they took it, their goals after it, torque and positions."""

    time_s: float
    part: str
    taken: bool
    goals: tuple[int, ...]
    torque: tuple[bool, ...]
    positions: tuple[float, ...]


class Time(VirtualClock):
    """A clock that moves only while it is waited for, and then does what is due by then."""

    def __init__(self) -> None:
        super().__init__()
        self._due: list[tuple[float, Callable[[], None]]] = []

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self._due.append((self.seconds + seconds, act))
        self._due.sort(key=lambda due: due[0])

    def wait(self, seconds: float, until: threading.Event) -> bool:
        self.wait_until(self.seconds + max(seconds, 0.0))
        return until.is_set()

    def wait_until(self, time: float) -> None:
        while self._due and self._due[0][0] <= time:
            when, act = self._due.pop(0)
            super().wait_until(when)
            act()
        super().wait_until(time)


class StepBus(VirtualBus):
    """Servos that count what they are asked since `arm_at`, and to which `kind` happens at the k-th.

    `parts` says from which moment on which part of a life was lived, `goals` has each write of goals. `strike` is
    called, in place of a failure of the line, where `kind` is none of its own.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.parts: list[tuple[int, str]] = []
        self.goals: list[Goals] = []
        self.count = self.at = 0
        self.kind = ""
        self.strike: Callable[[str], None] = lambda kind: None
        self.later: Callable[[float, Callable[[], None]], None] = lambda seconds, act: None
        self.heard = threading.Condition()  # a write of goals
        self._lies = 0  # more readings of positions that are to be wrong
        self._lying = self._struck = False

    def arm_at(self, at: int, kind: str) -> None:
        """From here on transactions are counted, and the `at`-th fails as `kind` says."""
        with self._lock:
            self.count, self.at, self.kind, self._struck = 0, at, kind, False

    def enter(self, part: str) -> None:
        """What happens from now on belongs to `part`."""
        with self._lock:
            self.advance()
            self.parts.append((len(self.moments), part))
            if part != "run":
                self._lies = min(self._lies, 1)

    @property
    def part(self) -> str:
        return self.parts[-1][1] if self.parts else ""

    def hear(self, request: Frame, baud: int = 1_000_000) -> Heard:
        with self._lock:
            if not self.plugged:
                return Heard([], 0.0)
            self.count += 1
            now = self.count == self.at
            self._struck = self._struck or now
            heard, taken = self._suffer(request, baud, now)
            if request.code == Instruction.SYNC_WRITE and request.parameters[0] == _GOAL:
                self.note_goals(taken)
            return heard

    def note_goals(self, taken: bool) -> None:
        """Goals were written; whether the servos have them."""
        servos = self.servos.values()
        goals, torque = tuple(servo.goal for servo in servos), tuple(servo.energised for servo in servos)
        positions = tuple(servo.position for servo in servos)
        with self.heard:
            self.goals.append(Goals(self._clock(), self.part, taken, goals, torque, positions))
            self.heard.notify_all()

    def _suffer(self, request: Frame, baud: int, now: bool) -> tuple[Heard, bool]:
        kind = self.kind if now or (self._struck and self.kind == "silence") else ""
        if kind in ("no answer", "write not taken", "silence"):
            self.advance()
            return Heard(self._echo(request), 0.0), False
        if kind == "EIO":
            self.advance()
            self.pull()
            self.later(BACK_S[kind], lambda: self.plug(True))
            return Heard([], 0.0), False
        if kind == "supply":
            self.inject({"fault": "power", "on": False})
            self.later(BACK_S[kind], lambda: self.inject({"fault": "power", "on": True}))
        if kind == "lie":
            self._lies = 2 if self.part == "run" else 1  # two that agree are believed: the loop's limits must hold then
        self._lying = self._lies > 0 and _asks_positions(request)
        self._lies -= self._lying
        heard = super().hear(request, baud)
        self._lying = False
        if kind == "answer lost":
            heard = Heard(self._echo(request), 0.0)
        if kind == "echo lost":
            heard = Heard([said for said in heard.said if said.raw != self._echo(request)[0].raw], heard.busy_s)
        if now:
            self.strike(self.kind)
        return heard, self._powered

    def pull(self) -> None:
        """Pull the adapter out, from any thread: what is still on the line is heard no more."""
        self.plugged = False
        self._line.soon(self._line.unplug)
        with self.heard:
            self.heard.notify_all()

    def _read(self, servo: VirtualServo, address: int, count: int) -> bytes:
        data = super()._read(servo, address, count)
        at = _PRESENT - address
        if self._lying and 0 <= at <= count - 2:
            data = data[:at] + encode("Present_Position", LIE) + data[at + 2 :]
        return data


def _asks_positions(request: Frame) -> bool:
    if request.code != Instruction.SYNC_READ or request.servo != BROADCAST:
        return False
    address, count = request.parameters[:2]
    return address <= _PRESENT and address + count >= _PRESENT + 2


class StepPort(VirtualPort):
    """The port to such servos: without a thread while Python speaks, with the pty's descriptor for the loop."""

    def __init__(self, bus: StepBus, clock: Time) -> None:
        super().__init__(bus, clock)
        self.dead = False  # with the process that had it
        self._bus = bus
        self._fd = -1

    def fileno(self) -> int:
        self._check()
        if self._fd < 0:
            self._fd = os.open(self._bus.path, os.O_RDWR | os.O_NOCTTY)
        return self._fd

    def close(self) -> None:
        super().close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def write(self, data: bytes) -> None:
        if self.dead:
            raise Killed
        bus = self._bus
        if bus.kind == "write not taken" and bus.count + 1 == bus.at and self.is_open:
            bus.count += 1
            if data[4] == Instruction.SYNC_WRITE and data[5] == _GOAL:
                bus.note_goals(False)
            raise BusTimeout(f"{self.path}: takes no more bytes", port=self.path)
        super().write(data)
        if self.dead:
            raise Killed

    def read(self, deadline: float, most: int = 4096) -> bytes:
        if self.dead:
            raise Killed
        return super().read(deadline, most)
