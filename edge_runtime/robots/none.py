"""No robot: joints that are wherever they were last sent."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

import numpy as np

from edge_runtime.config import NoRobotConfig, StopPolicy
from edge_runtime.errors import ConfigError, DeviceError
from edge_runtime.motors.stopping import StopPlan
from edge_runtime.robots import Vector
from edge_runtime.wire.messages import Joint


class NoRobot:
    """Obeys at once and without a bus, for the profiler and for trying out a server. Joints have no limits."""

    def __init__(self, config: NoRobotConfig) -> None:
        if not config.joints:
            raise ConfigError("robot.joints: not given; a robot of type none has those that you name, with their units")
        for name, unit in config.joints.items():
            if not (name and name.isprintable() and unit and unit.isprintable()):
                raise ConfigError(f"robot.joints.{name}: {unit!r} is not a unit such as degrees")
        self.joints = tuple(Joint(name, unit) for name, unit in config.joints.items())
        self.lower: Vector = np.full(len(self.joints), -np.inf)
        self.upper: Vector = np.full(len(self.joints), np.inf)
        self._positions: Vector = np.zeros(len(self.joints))

    def __enter__(self) -> NoRobot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """There is nothing to find."""

    def prepare(self, before_torque: Callable[[], None] = lambda: None, stop: threading.Event | None = None) -> Vector:
        """The present position. `before_torque` is not called: there is no arm to stop."""
        return self._positions

    def port(self, period_s: float, *, expects_torque: bool = True) -> Any:
        """A `_realtime.PythonPort` over this object."""
        from edge_runtime._realtime import PythonPort

        return PythonPort(self, len(self.joints))

    def lend(self) -> None: ...

    def read(self) -> Vector:
        """Where it was sent."""
        return self._positions

    def write(self, goals: Vector) -> None:
        self._positions = np.array(goals)

    def stop(self, policy: StopPolicy, hurry: threading.Event) -> None: ...

    def stop_plan(self, policy: StopPolicy) -> StopPlan:
        return StopPlan("hold", {})

    def fileno(self) -> int:
        raise DeviceError("a robot of type none has no port")

    def close(self) -> None: ...

    def watch(self) -> None: ...

    def report(self) -> dict[str, Any]:
        return {"joints": {}}
