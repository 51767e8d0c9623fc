"""The names and units of the joints, which LeRobot's checkpoints do not hold: from our table, or from the user."""

from __future__ import annotations

from collections.abc import Sequence

from edge_runtime.errors import ConfigError
from edge_runtime.program.schema import hint
from edge_runtime.wire.messages import Joint

SO_ARM = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
ROBOTS = {"so100_follower": SO_ARM, "so101_follower": SO_ARM}


def of_robot(robot_type: str, use_degrees: bool = True) -> tuple[Joint, ...]:
    """A robot's joints as LeRobot's class of that name reports them. Raises ConfigError for one not in the table."""
    if robot_type not in ROBOTS:
        raise ConfigError(
            f"robot.type: {robot_type} is not in the table, {hint(robot_type, ROBOTS)} (else give --names and --units)"
        )
    unit = "degrees" if use_degrees else "normalized"
    return tuple(Joint(f"{name}.pos", "percent" if name == "gripper" else unit) for name in ROBOTS[robot_type])


def of_user(names: Sequence[str], units: Sequence[str]) -> tuple[Joint, ...]:
    """Joints by name, with one unit for each or one for all. Raises ConfigError when they do not fit each other."""
    if len(units) == 1:
        units = tuple(units) * len(names)
    if len(units) != len(names):
        raise ConfigError(f"units: {len(units)} for {len(names)} names; expected one for all or one for each")
    if len(set(names)) != len(names) or not all(names) or not all(units):
        raise ConfigError(f"names: {','.join(names)}; expected different names, none of them empty")
    return tuple(Joint(name, unit) for name, unit in zip(names, units, strict=True))
