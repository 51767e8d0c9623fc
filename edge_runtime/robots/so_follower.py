"""An SO-100 or SO-101 follower arm: six STS3215 that must be the right ones before anything moves."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import asdict
from types import TracebackType
from typing import Any

import numpy as np

from edge_runtime.config import SOFollowerConfig, StopPolicy
from edge_runtime.errors import BusError, ConfigError
from edge_runtime.motors import calibration as calibrations
from edge_runtime.motors.bus import Bus
from edge_runtime.motors.calibration import JOINTS, UNITS, Mode
from edge_runtime.motors.clock import Clock
from edge_runtime.motors.feetech import TICKS_PER_TURN, error_names
from edge_runtime.motors.port import adapters
from edge_runtime.motors.stopping import PARK_SPEED, Axis, StopPlan, carry_out, limp
from edge_runtime.program.schema import hint
from edge_runtime.robots import Vector, so_condition, so_servos
from edge_runtime.robots.so_servos import GRIPPER, IDS
from edge_runtime.robots.so_watch import ServoWatch
from edge_runtime.wire.messages import Joint

_FASTEST = 254  # register Acceleration: LeRobot leaves smoothness to the client
_TOLERATED_TICKS = 5
_FAR_TICKS = 228  # 20 degrees outside the range: further, and it is the calibration or the position that is wrong
_LED_IN_TICKS = 12  # 1 degree from the range: arrived
_GENTLE = 400  # of 1000: the most force for a joint that is led into its range
_LEAD_PERIOD_S = 0.02
_LATE_S = 2.0  # for a joint that is led in, beyond what the way takes
_LONGEST_TIMEOUT_S = 0.010
_PERIOD_PART = 1 / 3  # of the tick, for the bus to answer

logger = logging.getLogger(__name__)


class SOFollower:
    """The arm of `config`; joints in degrees or -100..100 and the gripper in 0..100, limits from its calibration file.

    `clock` is the time in which the arm is waited for, `bus` what it hangs on: a simulation gives its own.
    Raises ConfigError when the calibration file is missing or cannot be, or a setting does not fit it.
    """

    def __init__(self, config: SOFollowerConfig, clock: Clock | None = None, bus: Bus | None = None) -> None:
        if not config.port:
            here = ", ".join(adapters()) or "none found"
            raise ConfigError(f"robot.port: not given; serial adapters here: {here}")
        self._config, self._clock = config, clock or Clock()
        self._file = calibrations.locate(config)
        self._calibration = calibrations.load(self._file)
        body = Mode.DEGREES if config.use_degrees else Mode.NORMALIZED
        self._modes = {joint: Mode.PERCENT if joint == GRIPPER else body for joint in JOINTS}
        self.joints = tuple(Joint(f"{joint}.pos", UNITS[self._modes[joint]]) for joint in JOINTS)
        limits = np.array([self._calibration[joint].limits(self._modes[joint]) for joint in JOINTS])
        self.lower: Vector = limits[:, 0]
        self.upper: Vector = limits[:, 1]
        self._rest = self._rest_pose()
        self._bus = bus or so_servos.bus_of(config)
        self._torque_limits: dict[int, int] = {}  # in use; empty while torque is none of our business
        self._loop_port: Any = None
        self._servos: ServoWatch | None = None

    def __enter__(self) -> SOFollower:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Open the port and check that six STS3215 of one firmware answer, calibrated as the file says.

        Torque stays as it is. Raises AccessError, BusError (port; servo missing, of another kind or unwell)
        or ConfigError (calibration differs, unless `write_calibration`).
        """
        with ExitStack() as stack:
            self._bus.open()
            stack.callback(self._bus.close)
            so_servos.check_models(self._bus)
            so_servos.check_firmware(self._bus)
            so_condition.check(self._bus, self._config)
            if not self._config.write_calibration:
                so_servos.check_calibration(self._bus, self._calibration, self._file)
            stack.pop_all()

    def prepare(self, before_torque: Callable[[], None] = lambda: None, stop: threading.Event | None = None) -> Vector:
        """Set the servos up as LeRobot does and energise them where the arm is; that position.

        In this order, so that no force ever meets a goal that is elsewhere: the position is read (twice), then
        `before_torque`, for from here on the arm is ours to stop; the position is made the goal and the goal read back;
        then memory (and `before_torque` again); where not all force is there the arm has come to rest first, and the
        position is read again; the limits, torque.
        An arm that a `hold` keeps up keeps its torque, unless a register must be written that a servo keeps over
        power-off: then it is let down first. A joint that is a little outside its calibrated range is led in at
        max_speed, until `stop` is set. BusError when it is far outside, or positions cannot be trusted.
        """
        bus, servos = self._bus, list(IDS.values())
        so_condition.check(bus, self._config)  # again: the server may have been waited for since `open`
        energised = [servo for servo, on in bus.read_surely("Torque_Enable", servos).items() if on]
        limits = bus.read_surely("Max_Torque_Limit", servos)
        present = so_servos.steady_positions(bus, servos)
        so_servos.tell_other_goals(bus, energised, present)
        self._torque_limits = limits  # from here on we change it, and must end it
        rest = self._rest
        self._rest = self._inside(present) | rest  # after a fault that of the first time
        before_torque()  # it may be on already
        bus.establish("Goal_Position", present)
        if self._write_memory(energised):
            energised = []
            present = so_servos.steady_positions(bus, servos)
            self._rest = self._inside(present) | rest
            before_torque()  # limits and counts may be others now
        full = self._torque_limits  # servos copy it at power-on only
        left = bus.read_all("Torque_Limit", servos)
        weak = [servo for servo in servos if servo not in energised or left[servo] < full[servo]]
        stop = stop or threading.Event()
        so_servos.await_rest(bus, weak, self._clock, stop)
        edges = self._edges(present | so_servos.steady_positions(bus, weak))
        bus.establish("Goal_Velocity", {servo: self._slow_ticks(servo) if servo in edges else 0 for servo in servos})
        for name, value in {"Acceleration": _FASTEST, "Goal_Time": 0}.items():
            bus.establish(name, dict.fromkeys(servos, value))
        force = full | {servo: min(full[servo], _GENTLE) for servo in edges}
        present |= so_servos.energise(bus, {servo: force[servo] for servo in servos if servo in weak or servo in edges})
        bus.establish("Lock", dict.fromkeys(servos, 1))
        pose = self._units(present | self._lead_in(present, edges, stop))
        logger.info(
            "torque is on at %s", ", ".join(f"{joint} {unit:.1f}" for joint, unit in zip(JOINTS, pose, strict=True))
        )
        return pose

    def port(self, period_s: float, *, expects_torque: bool = True) -> Any:
        """A `_realtime.FeetechPort`, which works from `lend` to `stop`."""
        from edge_runtime._realtime import FeetechPort

        entries = [self._calibration[joint] for joint in JOINTS]
        timeout_s = min(_LONGEST_TIMEOUT_S, period_s * _PERIOD_PART)
        if self._config.bus_timeout_ms is not None:
            timeout_s = self._config.bus_timeout_ms / 1e3
        self._loop_port = FeetechPort(
            None,
            list(IDS.values()),
            [int(self._modes[joint]) for joint in JOINTS],
            [entry.range_min for entry in entries],
            [entry.range_max for entry in entries],
            [entry.drive_mode for entry in entries],
            timeout_ns=int(timeout_s * 1e9),
            echo=self._config.echo,
            expects_torque=expects_torque,
            stop_temperature=self._config.max_temperature,
        )
        self._servos = ServoWatch(self._loop_port)
        return self._loop_port

    def lend(self) -> None:
        """Give the bus to the port, until `stop`."""
        self._loop_port.reopen(self._bus.lend())

    def read(self) -> Vector:
        """The present position; BusTimeout names the servos that did not answer."""
        return self._units(self._bus.read_all("Present_Position", IDS.values()))

    def stop(self, policy: StopPolicy, hurry: threading.Event) -> None:
        """End as `policy` says, if torque is ours; BusError when servos could not be reached or did not confirm.

        What did not confirm is tried again by the next call, while there is a port.
        """
        self._bus.take_back()
        if not self._torque_limits or not self._bus.is_open:
            return
        if policy == "hold" and not hurry.is_set():
            logger.info("torque stays on: the arm holds its last goal")
            return
        try:
            carry_out(self._bus, self.stop_plan(policy), hurry, self._clock)
        except BusError as error:
            if self._bus.is_open:
                raise
            raise BusError(
                f"{error}; the servos could not be stopped and hold their last goal until their supply is cut",
                port=self._config.port,
            ) from error
        self._torque_limits = {}
        logger.info("torque is off")

    def stop_plan(self, policy: StopPolicy) -> StopPlan:
        """What `stop` will do, torque being on, for the supervisor, which may have to do it instead."""
        config = self._config
        return StopPlan(
            policy,
            self._torque_limits,
            self._axes(),
            config.max_speed,
            config.park_timeout_s,
            echo=config.echo,
            timeout_s=self._bus.timeout_s,
        )

    def fileno(self) -> int:
        """The serial port's descriptor, once open."""
        return self._bus.fileno()

    def close(self) -> None:
        """Close the port; torque stays as it is. Twice is harmless."""
        self._bus.close()

    def watch(self) -> None:
        """Log what has changed in what the loop sees of the servos; while it runs."""
        if self._servos:
            self._servos.look()

    def report(self) -> dict[str, Any]:
        """Counts since the start, the loop's included: by joint `misses` and `errors`, for the line the rest."""
        bus, loop = self._bus, self._loop_port
        health = self._servos.health() if self._servos else {}
        joints: dict[str, Any] = {}
        for index, (joint, number) in enumerate(IDS.items()):
            flags = bus.flags.get(number, 0) | (loop.all_errors[index] if loop else 0)
            misses = bus.misses.get(number, 0) + (loop.misses[index] if loop else 0)
            joints[joint] = {"id": number, "misses": misses, "errors": error_names(flags) if flags else ""}
            if joint in health:
                joints[joint] |= asdict(health[joint])
        return {
            "joints": joints,
            "bad_frames": bus.damaged + (loop.bad_frames if loop else 0),
            "stray_bytes": bus.stray + (loop.junk_bytes if loop else 0),
        }

    def _write_memory(self, energised: Collection[int]) -> bool:
        """Put right what the servos keep; whether there was something, and torque is off for it."""
        config = self._config
        gains = (config.position_p_coefficient, config.position_i_coefficient, config.position_d_coefficient)
        changes = so_servos.differing(self._bus, so_servos.memory(gains, self._calibration))
        if not changes:
            return False
        logger.info("torque goes off, to write %s", ", ".join(changes))
        if energised:
            limp(self._bus, self._torque_limits, threading.Event(), self._clock)  # it may hang from them
        so_servos.write_memory(self._bus, changes)
        self._torque_limits = self._bus.read_surely("Max_Torque_Limit", IDS.values())
        return True

    def _edges(self, present: dict[int, int]) -> dict[int, int]:
        """The near end of the range, by id, of the joints outside it; BusError for one that is far outside."""
        edges = {}
        for joint, entry in self._calibration.items():
            edge = min(max(present[entry.id], entry.range_min), entry.range_max)
            beyond = abs(present[entry.id] - edge)
            if beyond > _FAR_TICKS:
                raise BusError(
                    f"{joint} (id {entry.id}) is {_degrees(beyond):.0f}° outside its calibrated range, and no more than"
                    f" {_degrees(_FAR_TICKS):.0f}° are safe: move it into its range by hand, or calibrate again",
                    port=self._config.port,
                    motor=entry.id,
                )
            if beyond > _TOLERATED_TICKS:
                logger.warning("%s is %.1f° outside its calibrated range: it is led in", joint, _degrees(beyond))
                edges[entry.id] = edge
        return edges

    def _slow_ticks(self, servo: int) -> int:
        """max_speed and no more than that of park, in ticks/s of the joint."""
        joint = JOINTS[servo - 1]
        speed = min(self._config.max_speed or PARK_SPEED, PARK_SPEED)
        return max(int(speed * self._calibration[joint].ticks_per_unit(self._modes[joint])), 1)

    def _lead_in(self, present: dict[int, int], edges: dict[int, int], stop: threading.Event) -> dict[int, int]:
        """Move the joints of `edges` there, slowly and with little force; BusError if one does not arrive.

        Their goals in the end. The servo's own speed limit holds too: it takes no goal outside its range, and would run
        to the end at once.
        """
        bus, goals, began = self._bus, {servo: present[servo] for servo in edges}, self._clock.now()
        late_s = max((abs(edges[servo] - present[servo]) / self._slow_ticks(servo) for servo in edges), default=0.0)
        while edges and not self._clock.wait(_LEAD_PERIOD_S, stop):
            elapsed = self._clock.now() - began
            for servo, edge in edges.items():
                step = int(elapsed * self._slow_ticks(servo))
                goals[servo] = min(max(edge, present[servo] - step), present[servo] + step)
            bus.sync_write("Goal_Position", goals)
            if goals == edges:
                here = bus.sync_read("Present_Position", list(edges))
                away = [
                    servo
                    for servo, edge in edges.items()
                    if abs(here.get(servo, present[servo]) - edge) > _LED_IN_TICKS
                ]
                if not away:
                    bus.establish("Goal_Position", edges)
                    break
                if elapsed > late_s + _LATE_S:
                    raise BusError(
                        f"{bus.label(away[0])} is outside its calibrated range and cannot be led in:"
                        " free it, and move it into its range by hand",
                        port=self._config.port,
                        motor=away[0],
                    )
        if edges and not stop.is_set():
            bus.establish("Goal_Velocity", dict.fromkeys(edges, 0))
            bus.establish("Torque_Limit", {servo: self._torque_limits[servo] for servo in edges})
        return goals

    def _inside(self, present: dict[int, int]) -> dict[str, float]:
        """Where the joints are, in units, or the near end of their range: an arm is not parked outside it."""
        pose = self._units(present).clip(self.lower, self.upper)
        return dict(zip(JOINTS, pose.tolist(), strict=True))

    def _rest_pose(self) -> dict[str, float]:
        """The user's, checked: joints that it does not name rest where they were at start."""
        pose = self._config.rest_pose or {}
        for joint, units in pose.items():
            name = f"robot.rest_pose.{joint}"
            if joint not in JOINTS:
                raise ConfigError(f"{name}: is no joint of this arm; {hint(joint, JOINTS)}")
            low, high = self._calibration[joint].limits(self._modes[joint])
            if not (math.isfinite(units) and low <= units <= high):
                raise ConfigError(f"{name}: {units:g} is not in {low:.1f}..{high:.1f} {UNITS[self._modes[joint]]}")
        return dict(pose)

    def _axes(self) -> list[Axis]:
        axes = []
        for joint, rest in self._rest.items():
            entry, mode = self._calibration[joint], self._modes[joint]
            axes.append(Axis(IDS[joint], entry.to_ticks(rest, mode), entry.ticks_per_unit(mode)))
        return axes

    def _units(self, ticks: dict[int, int]) -> Vector:
        values = [self._calibration[joint].to_units(ticks[IDS[joint]], self._modes[joint]) for joint in JOINTS]
        return np.array(values, dtype=np.float64)


def _degrees(ticks: int) -> float:
    return ticks * 360 / TICKS_PER_TURN
