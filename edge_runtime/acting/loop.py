"""The loop of a robot, with the limits of its configuration for each joint."""

from __future__ import annotations

import math
from collections.abc import Sequence

from edge_runtime._realtime import ActionRing, ActuatorLoop
from edge_runtime.config import PATIENCE_S, RobotConfig, StartConfig
from edge_runtime.errors import ConfigError
from edge_runtime.program.schema import hint
from edge_runtime.robots import Robot


def make_loop(
    config: StartConfig, robot: Robot, ring: ActionRing, *, history_s: float, page: memoryview | None
) -> ActuatorLoop:
    """A loop that executes `ring` on `robot` as `config` says; it does not run yet.

    It remembers the ticks of `history_s`, and its supervisor reads `page`. Raises ConfigError for a joint that the
    robot does not have.
    """
    names = [joint.name.removesuffix(".pos") for joint in robot.joints]
    control_hz = config.fps * config.substeps
    return ActuatorLoop(
        ring,
        robot.port(1 / control_hz, expects_torque=not config.dry_run),
        fps=config.fps,
        substeps=config.substeps,
        lower=robot.lower if config.robot.clamp_range else None,
        upper=robot.upper if config.robot.clamp_range else None,
        max_speed=config.robot.max_speed,
        max_relative_target=relative_limits(config.robot, names),
        max_missed_replies=config.robot.max_missed_replies,
        dry_run=config.dry_run,
        realtime=config.realtime,
        priority=config.priority,
        names=names,
        history=math.ceil(history_s * control_hz),
        page=page,
        patience_s=PATIENCE_S,
    )


def relative_limits(config: RobotConfig, joints: Sequence[str]) -> list[float] | None:
    """`max_relative_target` for each of `joints`, inf where it names others only; None without any.

    Raises ConfigError for a name that is not one of `joints`.
    """
    limit = config.max_relative_target
    if not isinstance(limit, dict):
        return None if limit is None else [limit] * len(joints)
    for name in sorted(set(limit) - set(joints)):
        raise ConfigError(f"robot.max_relative_target.{name}: is no joint of it; {hint(name, joints)}")
    return [limit.get(name, math.inf) for name in joints]
