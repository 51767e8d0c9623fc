"""Robots by name: what every robot can do, and which module has which."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from edge_runtime.config import RobotConfig, StopPolicy
from edge_runtime.errors import ConfigError
from edge_runtime.motors.stopping import StopPlan
from edge_runtime.program.schema import hint
from edge_runtime.wire.messages import Joint

Vector = npt.NDArray[np.float64]

ROBOTS = {
    "none": "edge_runtime.robots.none:NoRobot",
    "so100_follower": "edge_runtime.robots.so_follower:SOFollower",
    "so101_follower": "edge_runtime.robots.so_follower:SOFollower",
}


class Robot(Protocol):
    """A robot; vectors are (joints,) in joint units, in the order of `joints`. Opened and closed as a context manager.

    `open` checks and changes no torque; `prepare` energises without a movement; `lend` gives the robot to the loop's
    `port`, and nobody else may talk to it until `stop`.
    """

    joints: tuple[Joint, ...]
    lower: Vector
    upper: Vector

    def __enter__(self) -> Robot: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def open(self) -> None:
        """Find the robot and check that it is the one of the configuration."""

    def prepare(self, before_torque: Callable[[], None] = ..., stop: threading.Event | None = None) -> Vector:
        """Call `before_torque`, make the present position the goal, then torque on; the present position.

        What must move for that does so only until `stop` is set.
        """

    def port(self, period_s: float, *, expects_torque: bool = True) -> Any:
        """What `_realtime.ActuatorLoop` reads and writes once in `period_s`, from `lend` to `stop`."""

    def lend(self) -> None:
        """Give the robot to the port."""

    def read(self) -> Vector:
        """The present position."""

    def stop(self, policy: StopPolicy, hurry: threading.Event) -> None:
        """End as `policy` says; `hurry`, once set, means limp at once. Twice is harmless."""

    def stop_plan(self, policy: StopPolicy) -> StopPlan:
        """What `stop` will do, for a process that must do it instead."""

    def fileno(self) -> int:
        """What that process speaks through."""

    def close(self) -> None:
        """Give up the hardware; torque stays as it is. Twice is harmless."""

    def watch(self) -> None:
        """Log what has changed in how its parts answer and feel; at every record, while the loop runs."""

    def report(self) -> dict[str, Any]:
        """What its bus counted, for the summary."""


def make_robot(config: RobotConfig) -> Robot:
    """The robot that `config` describes, not opened yet. ConfigError for an unknown type or a wrong setting."""
    kind = str(config.get_choice_name(type(config)))
    if kind not in ROBOTS:
        raise ConfigError(f"robot.type: {kind!r} is not a robot; {hint(kind, ROBOTS)}")
    module, _, name = ROBOTS[kind].partition(":")
    return cast(Robot, getattr(importlib.import_module(module), name)(config))
