"""An SO-100 or SO-101 follower arm: six STS3215 that must be the right ones before anything moves."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from types import TracebackType
from typing import Any

import numpy as np

from edge_runtime.config import SOFollowerConfig, StopPolicy
from edge_runtime.errors import BusError, ConfigError
from edge_runtime.motors import calibration as calibrations
from edge_runtime.motors.calibration import JOINTS, UNITS, Mode
from edge_runtime.motors.feetech import error_names
from edge_runtime.motors.port import adapters
from edge_runtime.motors.stopping import Axis, StopPlan, carry_out
from edge_runtime.program.schema import hint
from edge_runtime.robots import Vector, so_servos
from edge_runtime.robots.so_servos import GRIPPER, IDS
from edge_runtime.robots.so_watch import ServoWatch
from edge_runtime.wire.messages import Joint

_FASTEST = 254  # register Acceleration: LeRobot leaves smoothness to the client
_TOLERATED_TICKS = 5
_LONGEST_TIMEOUT_S = 0.010
_PERIOD_PART = 1 / 3  # of the tick, for the bus to answer

logger = logging.getLogger(__name__)


class SOFollower:
    """The arm of `config`; joints in degrees or -100..100 and the gripper in 0..100, limits from its calibration file.

    Raises ConfigError when the calibration file is missing or cannot be, or a setting does not fit it.
    """

    def __init__(self, config: SOFollowerConfig, clock: Callable[[], float] = time.monotonic) -> None:
        if not config.port:
            here = ", ".join(adapters()) or "none found"
            raise ConfigError(f"robot.port: not given; serial adapters here: {here}")
        self._config, self._clock = config, clock
        self._file = calibrations.locate(config)
        self._calibration = calibrations.load(self._file)
        body = Mode.DEGREES if config.use_degrees else Mode.NORMALIZED
        self._modes = {joint: Mode.PERCENT if joint == GRIPPER else body for joint in JOINTS}
        self.joints = tuple(Joint(f"{joint}.pos", UNITS[self._modes[joint]]) for joint in JOINTS)
        limits = np.array([self._calibration[joint].limits(self._modes[joint]) for joint in JOINTS])
        self.lower: Vector = limits[:, 0]
        self.upper: Vector = limits[:, 1]
        self._rest = self._rest_pose()
        self._bus = so_servos.bus_of(config)
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

        Torque stays as it is. Raises AccessError, BusError (port; servo missing, hot or of another kind) or ConfigError
        (calibration differs, unless `write_calibration`).
        """
        with ExitStack() as stack:
            self._bus.open()
            stack.callback(self._bus.close)
            so_servos.check_models(self._bus)
            so_servos.check_firmware(self._bus)
            so_servos.check_temperature(self._bus, self._config.max_temperature)
            if not self._config.write_calibration:
                so_servos.check_calibration(self._bus, self._calibration, self._file)
            stack.pop_all()

    def prepare(self, before_torque: Callable[[], None] = lambda: None) -> Vector:
        """Set the servos up as LeRobot does, make the present position the goal, then torque on; that position.

        `before_torque` is called when all the rest is done. Torque goes off before only if a register must be written
        that a servo keeps over power-off.
        """
        config = self._config
        gains = (config.position_p_coefficient, config.position_i_coefficient, config.position_d_coefficient)
        self._torque_limits = self._bus.read_all("Max_Torque_Limit", IDS.values())  # torque may be on from a `hold`
        so_servos.write_memory(self._bus, so_servos.memory(gains, self._calibration))
        self._torque_limits = self._bus.read_all("Max_Torque_Limit", IDS.values())
        self._bus.establish("Torque_Limit", self._torque_limits)  # servos copy it at power-on only
        for name, value in {"Acceleration": _FASTEST, "Goal_Time": 0, "Goal_Velocity": 0}.items():
            self._bus.establish(name, dict.fromkeys(IDS.values(), value))
        present = self._bus.read_all("Present_Position", IDS.values())
        self._bus.establish("Goal_Position", present)  # read back: a stale goal with torque on is a blow
        self._warn_outside(present)
        pose = self._units(present)
        self._rest = {**dict(zip(JOINTS, pose.tolist(), strict=True)), **self._rest}  # of the first time, after a fault
        before_torque()
        self._bus.establish("Torque_Enable", dict.fromkeys(IDS.values(), 1))
        self._bus.establish("Lock", dict.fromkeys(IDS.values(), 1))
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
        """End as `policy` says, if torque is ours; BusError when servos could not be reached or did not confirm."""
        self._bus.take_back()
        if not self._torque_limits:
            return
        if policy == "hold" and not hurry.is_set():
            logger.info("torque stays on: the arm holds its last goal")
            return
        plan, self._torque_limits = self.stop_plan(policy), {}
        try:
            carry_out(self._bus, plan, hurry, self._clock)
        except BusError as error:
            if self._bus.is_open:
                raise
            raise BusError(
                f"{error}; the servos could not be stopped and hold their last goal until their supply is cut",
                port=self._config.port,
            ) from error
        logger.info("torque is off")

    def stop_plan(self, policy: StopPolicy) -> StopPlan:
        """What `stop` will do, torque being on, for whoever must do it instead."""
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

    def _warn_outside(self, present: dict[int, int]) -> None:
        for joint, entry in self._calibration.items():
            beyond = max(entry.range_min - present[entry.id], present[entry.id] - entry.range_max)
            if beyond > _TOLERATED_TICKS:
                logger.warning("%s is %d ticks outside its calibrated range, and moves into it now", joint, beyond)

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
