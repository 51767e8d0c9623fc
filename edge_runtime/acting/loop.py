"""The loop of a robot, with the limits of its configuration for each joint."""

from __future__ import annotations

import math
from collections.abc import Mapping

from edge_runtime._realtime import ActionRing, ActuatorLoop
from edge_runtime.config import PATIENCE_S, StartConfig
from edge_runtime.errors import ConfigError
from edge_runtime.program.schema import hint
from edge_runtime.robots import Robot

FAR = 20.0  # joint units from the goal: a joint that lags on its way is nearer


def make_loop(
    config: StartConfig, robot: Robot, ring: ActionRing, *, history_s: float, page: memoryview | None
) -> ActuatorLoop:
    """A loop that executes `ring` on `robot` as `config` says; it does not run yet.

    It remembers the ticks of `history_s`, and its supervisor reads `page`. Raises ConfigError for a joint that the
    robot does not have.
    """
    names, limits = [joint.name.removesuffix(".pos") for joint in robot.joints], config.robot
    off = dict.fromkeys(names, math.inf)
    far = {
        name: math.inf if joint.unit == "percent" else FAR for name, joint in zip(names, robot.joints, strict=True)
    }  # a gripper is as far from its goal as what it holds is wide
    control_hz = config.fps * config.substeps
    return ActuatorLoop(
        ring,
        robot.port(1 / control_hz, expects_torque=not config.dry_run),
        fps=config.fps,
        substeps=config.substeps,
        lower=robot.lower if limits.clamp_range else None,
        upper=robot.upper if limits.clamp_range else None,
        max_speed=limits.max_speed,
        max_acceleration=[limit or math.inf for limit in by_joint("max_acceleration", limits.max_acceleration, off)],
        max_relative_target=by_joint("max_relative_target", limits.max_relative_target, off),
        following_error=limits.following_error,
        following_limit=by_joint("following_limit", limits.following_limit, far),
        following_s=limits.following_s,
        max_missed_replies=limits.max_missed_replies,
        dry_run=config.dry_run,
        realtime=config.realtime,
        priority=config.priority,
        names=names,
        history=math.ceil(history_s * control_hz),
        page=page,
        patience_s=PATIENCE_S,
    )


def by_joint(name: str, limit: float | Mapping[str, float] | None, default: Mapping[str, float]) -> list[float]:
    """The setting `robot.NAME` for each joint of `default`, which holds for those that it does not name.

    Raises ConfigError for a name that is no joint.
    """
    given = limit if isinstance(limit, Mapping) else {} if limit is None else dict.fromkeys(default, limit)
    for joint in sorted(given.keys() - default.keys()):
        raise ConfigError(f"robot.{name}.{joint}: is no joint of it; {hint(joint, default)}")
    return [given.get(joint, usual) for joint, usual in default.items()]
