"""What LeRobot's checkpoints do not hold and a user states: the joints' names and units, and the rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edge_runtime.errors import ConfigError, UsageError
from edge_runtime.program.schema import hint
from edge_runtime.wire.messages import Joint

SO_ARM = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
ROBOTS = {"so100_follower": SO_ARM, "so101_follower": SO_ARM}


@dataclass
class StatedRobot:
    """The robot that the policy was trained on, in LeRobot's words."""

    type: str | None = None  # so100_follower or so101_follower: joint names and units from a table
    use_degrees: bool = True  # false: -100..100


@dataclass(frozen=True)
class Stated:
    """Whole: what a checkpoint needs beside itself to be a policy for a robot."""

    joints: tuple[Joint, ...]
    fps: float
    robot_type: str | None = None

    @property
    def flags(self) -> list[str]:
        """What export-onnx is told of it."""
        units = ",".join(joint.unit for joint in self.joints)
        names = ",".join(joint.name for joint in self.joints)
        robot = [f"--names={names}", f"--units={units}"]
        if self.robot_type:
            robot = [f"--robot.type={self.robot_type}"]
            if self.joints != of_robot(self.robot_type):
                robot.append("--robot.use_degrees=false")
        return [f"--fps={self.fps:g}", *robot]


def stated(robot: StatedRobot, names: Sequence[str], units: Sequence[str], fps: float | None) -> Stated:
    """Raises UsageError for a rate that is missing, ConfigError for joints stated twice, by halves or not at all."""
    if fps is None:
        untold = "" if robot.type or names or units else "; and --robot.type, or --names and --units"
        raise UsageError(f"fps is missing: --fps=30, the rate that the policy was trained at{untold}")
    return Stated(joints(robot, names, units), fps, robot.type)


def joints(robot: StatedRobot, names: Sequence[str], units: Sequence[str]) -> tuple[Joint, ...]:
    """The joints that the user stated, one way or the other. Raises ConfigError for neither, both, or half of one."""
    if robot.type and (names or units):
        raise ConfigError("robot.type: names and units come from the table; give either it or --names and --units")
    if robot.type:
        return of_robot(robot.type, robot.use_degrees)
    if names and units:
        return of_user(names, units)
    raise ConfigError("robot.type: a checkpoint holds neither joint names nor units; give it, or --names and --units")


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
