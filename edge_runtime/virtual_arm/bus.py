"""Six virtual servos behind a pseudo-terminal: what a serial adapter with an SO-101 on it looks like to a client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edge_runtime.motors.feetech import BROADCAST, Frame, Instruction, frame
from edge_runtime.virtual_arm.calibration import CALIBRATION
from edge_runtime.virtual_arm.faults import LINE_FAULTS, REQUEST_FAULTS, Faults, Order, parse
from edge_runtime.virtual_arm.frame_log import Entry, FrameLog, sync_rows
from edge_runtime.virtual_arm.line import Line
from edge_runtime.virtual_arm.servos import TABLE_SIZE, VirtualServo

BYTE_S = 10e-6  # 10 bits at 1 Mbit/s

Ticks = npt.NDArray[np.float64]


class Plant(Protocol):
    """What the servos move. It is driven from outside, with what `VirtualBus.targets` says."""

    def positions_ticks(self) -> Sequence[float] | Ticks:
        """Shaft positions (6,) now, in ticks."""


class VirtualBus:
    """Servos 1..6 on a pty, with LeRobot's calibration already in them; a context manager.

    `path` is what a client opens: `link`, a symlink that survives unplugging, or else the pty's own name. Without a
    `plant` the motion profile is the position. `wire_time` makes every byte last 10 us and honours the register
    Return_Delay_Time; `return_delay_s` is a fixed delay instead of the register's. `clock` is the time of motion and of
    `log`. The pty stays when a client leaves.
    """

    def __init__(
        self,
        *,
        link: Path | None = None,
        plant: Plant | None = None,
        wire_time: bool = False,
        return_delay_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        seed: int = 0,
        log_size: int = 100_000,
    ) -> None:
        self.servos = {entry.id: VirtualServo(entry.id, clock()) for entry in CALIBRATION.values()}
        for entry in CALIBRATION.values():
            self.servos[entry.id].set("Min_Position_Limit", entry.range_min)
            self.servos[entry.id].set("Max_Position_Limit", entry.range_max)
        self.log = FrameLog(log_size)
        self._plant, self._clock = plant, clock
        self._wire_time, self._return_delay_s = wire_time, return_delay_s
        self._faults = Faults(seed)
        self._powered = True
        self._line_free_s = 0.0  # when the wire has carried all that was said
        self._lock = threading.Lock()  # servos, faults, power
        self._line = Line(link, self._hear)

    def __enter__(self) -> VirtualBus:
        self._line.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._line.close()

    @property
    def path(self) -> str:
        """What a client opens; empty while unplugged."""
        return self._line.path

    def targets(self) -> tuple[Ticks, Ticks]:
        """For whoever steps the plant: the motion profiles (6,) in ticks, and the part of its force each may use."""
        with self._lock:
            self._advance()
            servos = self.servos.values()
            return np.array([each.setpoint for each in servos]), np.array([each.torque for each in servos])

    def positions(self) -> Ticks:
        """The true shaft positions (6,) in ticks."""
        with self._lock:
            self._advance()
            return np.array([each.shaft for each in self.servos.values()])

    def values(self, register: str) -> list[int]:
        """What `register` of each servo holds, all that was asked so far being done."""
        with self._lock:
            return [servo.get(register) for servo in self.servos.values()]

    def place(self, ticks: Sequence[float] | Ticks) -> None:
        """Put the shafts at `ticks` (6,), at rest, and make that the goals; the plant is the caller's to place."""
        with self._lock:
            self._advance()
            for servo, tick in zip(self.servos.values(), ticks, strict=True):
                servo.place(float(tick))

    def turn(self, ticks: Mapping[int, float]) -> None:
        """Let a hand turn limp joints (number -> ticks of the shaft); only without a plant."""
        with self._lock:
            self._advance()
            for joint, tick in ticks.items():
                self.servos[joint].turn(tick)

    def inject(self, order: Mapping[str, Any]) -> None:
        """Let something go wrong: {"fault": "silent", "ids": [3]}; the words are in `faults`. ConfigError if unknown.

        When this returns it has happened.
        """
        fault = parse(order, self.servos)
        if fault.kind in ("unplug", "clear", "replug"):
            self._line.call(self._line.unplug if fault.kind == "unplug" else self._line.plug)
        with self._lock:
            self._advance()
            self._apply(fault)

    def _apply(self, fault: Order) -> None:
        servos = [self.servos[number] for number in sorted(fault.ids)]
        if fault.kind in LINE_FAULTS or fault.kind in REQUEST_FAULTS:
            self._faults.set(fault)
        elif fault.kind == "flags":
            for servo in servos:
                servo.flags = fault.bits
        elif fault.kind == "register":
            for servo in servos:
                servo.set(fault.name, fault.value)
        elif fault.kind == "reboot":
            for servo in servos:
                servo.power_cycle()
        elif fault.kind == "power":
            self._power(fault.on)
        elif fault.kind == "clear":
            self._faults.clear()
            self._power(True)
            for servo in servos:
                servo.flags = 0

    def _power(self, on: bool) -> None:
        if on != self._powered:
            self._powered = on
            for servo in self.servos.values():
                servo.power_cycle()

    def _advance(self) -> None:
        """Bring every servo to now."""
        now = self._clock()
        shafts = None if self._plant is None else self._plant.positions_ticks()
        for index, servo in enumerate(self.servos.values()):
            servo.advance(now)
            servo.shaft = servo.setpoint if shafts is None else float(shafts[index])

    def _hear(self, request: Frame) -> None:
        """A request came from the client: let the servos do it and put their answers on the line."""
        with self._lock:
            self._advance()
            self.log.add(Entry(self._clock(), request))
            ready = max(time.monotonic(), self._line_free_s) + self._duration(frame(*request))
            if self._faults.strikes("echo"):
                self._line.say(frame(*request), ready)
            self._line_free_s = self._answer(request, ready) if self._powered else ready

    def _answer(self, request: Frame, ready: float) -> float:
        """Let the servos answer a request that ended at `ready`; when the last of them has."""
        servos = self._addressed(request)
        answers = [(servo, self._obey(servo, request)) for servo in servos]
        if request.code == Instruction.SYNC_READ and self._faults.strikes("order"):
            answers.reverse()
        for servo, data in answers:
            if data is None or self._faults.strikes("silent", servo.joint):
                continue
            raw = frame(servo.id, servo.flags, data)
            ready += self._return_delay(servo) + self._duration(raw)
            self.log.add(Entry(self._clock(), Frame(servo.id, servo.flags, data), request))
            late = self._faults.strikes("late", servo.joint)
            slow = self._faults.strikes("bytewise", servo.joint)
            raw = self._faults.distort(servo.joint, raw)
            start = ready + (late.delay_s if late else 0.0)
            if slow is None:
                self._line.say(raw, start)
                continue
            for index in range(len(raw)):
                self._line.say(raw[index : index + 1], start + index * slow.delay_s)
            ready += len(raw) * slow.delay_s
        return ready

    def _addressed(self, request: Frame) -> list[VirtualServo]:
        """The servos that hear and mean themselves, in the order in which they answer."""
        if request.code == Instruction.SYNC_READ:
            ids = list(request.parameters[2:])
        elif request.code == Instruction.SYNC_WRITE:
            ids = [servo for servo, _ in sync_rows(request.parameters)] if len(request.parameters) > 1 else []
        else:
            ids = [each.id for each in self.servos.values()] if request.servo == BROADCAST else [request.servo]
        baud = self._line.baud
        return [
            servo
            for each in dict.fromkeys(ids)
            for servo in self.servos.values()
            if servo.id == each and servo.baud == baud and not self._faults.strikes("deaf", servo.joint)
        ]

    def _obey(self, servo: VirtualServo, request: Frame) -> bytes | None:
        """Do what `request` says; the data of the answer, or None where none is given."""
        code, parameters = request.code, request.parameters
        if code == Instruction.PING:
            return b""
        if code in (Instruction.READ, Instruction.SYNC_READ) and len(parameters) >= 2 and parameters[1] <= TABLE_SIZE:
            return servo.read(parameters[0], parameters[1])
        if code == Instruction.SYNC_WRITE:
            servo.write(parameters[0], dict(sync_rows(parameters))[servo.id])
            return None
        if code == Instruction.WRITE and parameters:
            servo.write(parameters[0], parameters[1:])
        elif code == Instruction.REG_WRITE and parameters:
            servo.register_write(parameters[0], parameters[1:])
        elif code == Instruction.ACTION:
            servo.action()
        else:
            return None
        return None if request.servo == BROADCAST or not servo.get("Response_Status_Level") else b""

    def _duration(self, raw: bytes) -> float:
        return BYTE_S * len(raw) if self._wire_time else 0.0

    def _return_delay(self, servo: VirtualServo) -> float:
        if self._return_delay_s is not None:
            return self._return_delay_s
        return servo.get("Return_Delay_Time") * 2e-6 if self._wire_time else 0.0
