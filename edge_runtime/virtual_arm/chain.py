"""Six virtual servos on one cable: what they hear they do and answer, and each move is in a log of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from edge_runtime.errors import ConfigError
from edge_runtime.motors.feetech import BAUD_RATES, BROADCAST, Frame, Instruction, frame
from edge_runtime.virtual_arm.calibration import CALIBRATION
from edge_runtime.virtual_arm.faults import LASTING, Faults, Order, parse
from edge_runtime.virtual_arm.frame_log import Entry, FrameLog, sync_rows
from edge_runtime.virtual_arm.moments import MomentLog
from edge_runtime.virtual_arm.motion import Weight
from edge_runtime.virtual_arm.servos import TABLE_SIZE, WEIGHTLESS, Felt, VirtualServo

BYTE_S = 10e-6  # 10 bits at 1 Mbit/s

# By joint, of an arm that is stretched out over a table: 0.54, 0.45 and 0.12 Nm of 3.35 in the MJCF of `model`.
WEIGHTS = {2: Weight(0.16, rest=2958), 3: Weight(0.135, rest=3072), 4: Weight(0.035, rest=2958)}

_KEPT_MOMENTS = 20_000  # some 25 MB, and five minutes at 30 Hz
_ASKING = (Instruction.PING, Instruction.READ, Instruction.SYNC_READ)

Ticks = npt.NDArray[np.float64]


class Plant(Protocol):
    """What the servos move instead of `Motion`. It is driven from outside, with what `ServoChain.targets` says."""

    def felt(self) -> Sequence[Felt]:
        """What it does to the six shafts now."""


class Targets(NamedTuple):
    """For the caller that steps a plant, (6,) each: where to, in counts, and with which parts of the stall force.

    `forces` is how much the drive may use, and `pushes` what comes from outside.
    """

    setpoints: Ticks
    forces: Ticks
    pushes: Ticks


class Said(NamedTuple):
    """Bytes on the line, `after_s` seconds after the request that they answer has ended."""

    after_s: float
    raw: bytes


class Heard(NamedTuple):
    """What a request brings about: what is said, in the order of its times, and for how long that keeps the wire."""

    said: list[Said]
    busy_s: float


class ServoChain:
    """Servos 1..6 with LeRobot's calibration already in them, without a port; see `VirtualBus` and `VirtualPort`.

    `clock` is the time of motion and of the logs, and may stand still. `log` has the frames, `moments` what the servos
    did: one at each request and one after it where it has changed a goal, torque or a limit. `wire_time` makes every
    byte last 10 us and honours the register Return_Delay_Time; `return_delay_s` is a fixed delay instead of the
    register's. Without a `plant` joints weigh `weights` (by number). All methods may be called from any thread.
    """

    def __init__(
        self,
        *,
        plant: Plant | None = None,
        weights: Mapping[int, Weight] = WEIGHTS,
        wire_time: bool = False,
        return_delay_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        seed: int = 0,
        log_size: int = 100_000,
    ) -> None:
        now = clock()
        self.servos = {
            entry.id: VirtualServo(entry.id, now, weight=weights.get(entry.id, WEIGHTLESS))
            for entry in CALIBRATION.values()
        }
        for entry in CALIBRATION.values():
            self.servos[entry.id].set("Min_Position_Limit", entry.range_min)
            self.servos[entry.id].set("Max_Position_Limit", entry.range_max)
        self.log = FrameLog(log_size)
        self.moments = MomentLog(min(log_size, _KEPT_MOMENTS))
        self.plugged = True
        self._plant, self._clock = plant, clock
        self._wire_time, self._return_delay_s = wire_time, return_delay_s
        self._faults = Faults(seed)
        self._powered = True
        self._detached: set[int] = set()
        self._lock = threading.RLock()  # servos, faults, power, moments

    def advance(self) -> None:
        """Bring every servo to now, and note how it is."""
        with self._lock:
            self._advance()
            self.moments.note(self._clock(), self.servos.values())

    def hear(self, request: Frame, baud: int = BAUD_RATES[0]) -> Heard:
        """Let the servos that hear `request` at `baud` do it, and answer."""
        with self._lock:
            self.advance()
            self.log.add(Entry(self._clock(), request))
            echo = self._echo(request)
            said, busy_s = self._answers(request, baud) if self._powered else ([], 0.0)
            if request.code not in _ASKING:
                self.moments.note(self._clock(), self.servos.values())
            return Heard(sorted(echo + said, key=_when), busy_s)

    def targets(self) -> Targets:
        """What the plant is asked for. A joint that is held up is led there with all force, by whatever holds it."""
        with self._lock:
            self._advance()
            rows = [
                (each.setpoint, each.torque, each.push) if each.held is None else (each.held, 1.0, each.push)
                for each in self.servos.values()
            ]
        return Targets(*np.array(rows).T)

    def positions(self) -> Ticks:
        """The true shaft positions (6,) in counts."""
        with self._lock:
            self._advance()
            return np.array([each.shaft for each in self.servos.values()])

    def values(self, register: str) -> list[int]:
        """What `register` of each servo holds, all that was asked so far being done."""
        with self._lock:
            return [servo.get(register) for servo in self.servos.values()]

    def joints(self) -> list[dict[str, Any]]:
        """How each servo is, for people: shaft and goal in counts of the shaft."""
        with self._lock:
            self._advance()
            return [
                {
                    "joint": servo.joint,
                    "id": servo.id,
                    "attached": servo.joint not in self._detached,
                    "torque": servo.energised,
                    "held": servo.held is not None,
                    "shaft": round(servo.shaft, 1),
                    "reported": servo.get("Present_Position"),
                    "goal": servo.get("Goal_Position"),
                    "load": servo.get("Present_Load"),
                }
                for servo in self.servos.values()
            ]

    def place(self, ticks: Sequence[float] | Ticks) -> None:
        """Put the shafts at `ticks` (6,), at rest and held up, and make that the goals; a plant is the caller's."""
        with self._lock:
            self._advance()
            for servo, tick in zip(self.servos.values(), ticks, strict=True):
                servo.place(float(tick))

    def inject(self, order: Mapping[str, Any]) -> None:
        """Let something go wrong: {"fault": "silent", "ids": [3]}; the words are in `faults`. ConfigError if unknown.

        When this returns it has happened.
        """
        fault = parse(order, self.servos)
        if fault.kind in ("unplug", "clear", "replug"):
            self.plug(fault.kind != "unplug")
        with self._lock:
            self.advance()
            self._apply(fault)
            self.advance()

    def plug(self, on: bool) -> None:
        """Plug the adapter in, or pull it out; twice is harmless."""
        self.plugged = on

    def _apply(self, fault: Order) -> None:
        servos = [self.servos[number] for number in sorted(fault.ids)]
        if fault.kind in LASTING:
            self._faults.set(fault)
        elif fault.kind == "power":
            self._power(fault.on)
        elif fault.kind == "hand":
            _take_in_hand(servos, fault)
        elif fault.kind == "detach":
            self._detached |= fault.ids
        elif fault.kind == "attach":
            self._detached -= fault.ids
        elif fault.kind == "clear":
            self._faults.clear()
            self._detached.clear()
            self._power(True)
        for servo in servos:
            _act(servo, fault)

    def _power(self, on: bool) -> None:
        if on != self._powered:
            self._powered = on
            for servo in self.servos.values():
                servo.power_cycle()

    def _advance(self) -> None:
        """Bring every servo to now."""
        now = self._clock()
        felt = None if self._plant is None else self._plant.felt()
        for index, servo in enumerate(self.servos.values()):
            servo.advance(now, None if felt is None else felt[index])

    def _echo(self, request: Frame) -> list[Said]:
        if self._faults.strikes("echo") and not self._faults.strikes("lost_echo"):
            return [Said(0.0, frame(*request))]
        return []

    def _answers(self, request: Frame, baud: int) -> tuple[list[Said], float]:
        """Let the servos do what `request` says, and answer one after the other; when the last of them is done."""
        answers = [(servo, servo.id, self._obey(servo, request)) for servo in self._addressed(request, baud)]
        if request.code == Instruction.SYNC_READ and self._faults.strikes("order"):
            answers.reverse()
        said: list[Said] = []
        ready = 0.0
        for servo, called, data in answers:
            if data is None or self._faults.strikes("silent", servo.joint):
                continue
            raw = frame(called, servo.flags, data)
            ready += self._return_delay(servo) + self.duration(raw)
            self.log.add(Entry(self._clock(), Frame(called, servo.flags, data), request))
            late = self._faults.strikes("late", servo.joint)
            slow = self._faults.strikes("bytewise", servo.joint)
            raw = self._faults.distort(servo.joint, raw)
            start = ready + (late.delay_s if late else 0.0)
            if slow is None:
                said.append(Said(start, raw))
                continue
            said += [Said(start + index * slow.delay_s, raw[index : index + 1]) for index in range(len(raw))]
            ready += len(raw) * slow.delay_s
        return said, ready

    def _addressed(self, request: Frame, baud: int) -> list[VirtualServo]:
        """The servos that hear and mean themselves, in the order in which they answer."""
        if request.code == Instruction.SYNC_READ:
            ids = list(request.parameters[2:])
        elif request.code == Instruction.SYNC_WRITE:
            ids = [servo for servo, _ in sync_rows(request.parameters)] if len(request.parameters) > 1 else []
        else:
            ids = [each.id for each in self.servos.values()] if request.servo == BROADCAST else [request.servo]
        here = [each for each in self.servos.values() if each.joint not in self._detached and each.baud == baud]
        return [
            servo
            for each in dict.fromkeys(ids)
            for servo in here
            if servo.id == each and not self._faults.strikes("deaf", servo.joint)
        ]

    def _obey(self, servo: VirtualServo, request: Frame) -> bytes | None:
        """Do what `request` says; the data of the answer, or None where none is given."""
        code, parameters = request.code, request.parameters
        if code == Instruction.PING:
            return b""
        if code in (Instruction.READ, Instruction.SYNC_READ) and len(parameters) >= 2 and parameters[1] <= TABLE_SIZE:
            answered = code == Instruction.SYNC_READ or request.servo != BROADCAST
            return self._read(servo, parameters[0], parameters[1]) if answered else None
        if code == Instruction.SYNC_WRITE:
            self._write(servo, servo.write, parameters[0], dict(sync_rows(parameters))[servo.id])
            return None
        if code == Instruction.WRITE and parameters:
            self._write(servo, servo.write, parameters[0], parameters[1:])
        elif code == Instruction.REG_WRITE and parameters:
            self._write(servo, servo.register_write, parameters[0], parameters[1:])
        elif code == Instruction.ACTION:
            servo.action()
        else:
            return None
        return None if request.servo == BROADCAST or not servo.get("Response_Status_Level") else b""

    def _read(self, servo: VirtualServo, address: int, count: int) -> bytes:
        return self._faults.tell(servo.joint, address, servo.read(address, count))

    def _write(self, servo: VirtualServo, write: Callable[[int, bytes], None], address: int, data: bytes) -> None:
        if not self._faults.strikes("lost_write", servo.joint, address, len(data)):
            write(address, data)

    def duration(self, raw: bytes) -> float:
        """How long `raw` takes on the wire, in seconds."""
        return BYTE_S * len(raw) if self._wire_time else 0.0

    def _return_delay(self, servo: VirtualServo) -> float:
        if self._return_delay_s is not None:
            return self._return_delay_s
        return servo.get("Return_Delay_Time") * 2e-6 if self._wire_time else 0.0


def _when(said: Said) -> float:
    return said.after_s


def _act(servo: VirtualServo, fault: Order) -> None:
    """What happens to one servo alone."""
    if fault.kind == "flags":
        servo.flags = fault.bits
    elif fault.kind == "register":
        servo.set(fault.name, fault.value)
    elif fault.kind == "factory":
        servo.reset_memory()
    elif fault.kind in ("reboot", "detach"):
        servo.power_cycle()
    elif fault.kind == "push":
        servo.push = fault.force
    elif fault.kind == "clear":
        servo.flags, servo.push = 0, 0.0


def _take_in_hand(servos: Sequence[VirtualServo], fault: Order) -> None:
    for servo in servos:
        if fault.on and servo.energised:
            raise ConfigError(f"ids: servo {servo.joint} is under torque, against which no hand turns it; push does")
    for servo in servos:
        servo.held = fault.position if fault.on else None
