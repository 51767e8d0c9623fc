"""The arm: its port, its servos, and the robot that they make, opened as `start` opens it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from edge_runtime.config import NoRobotConfig, SOFollowerConfig, StartConfig
from edge_runtime.errors import BusError, EdgeRuntimeError
from edge_runtime.motors.port import adapters
from edge_runtime.robots import Robot, make_robot
from edge_runtime.tools.bringup.arm import bus_of
from edge_runtime.tools.doctor import port, servos
from edge_runtime.tools.doctor.finding import Finding, Group
from edge_runtime.tools.doctor.port import ARM

AFTERWARDS = Group("afterwards")


@dataclass(frozen=True)
class Arm:
    """An open robot, and which servos were energised before (id -> 0 or 1; empty where that cannot be asked)."""

    robot: Robot
    torque: dict[int, int]


def is_given(config: StartConfig) -> bool:
    return not isinstance(config.robot, NoRobotConfig) or bool(config.robot.joints)


def examine(config: StartConfig, stack: ExitStack) -> Generator[Finding, None, Arm | None]:
    """Returns the arm if nothing is wrong with it; `stack` closes it."""
    if not is_given(config):
        here = ", ".join(adapters()) or "none"
        yield ARM.skipped("robot", f"none given (--robot.type, --robot.port); serial adapters here: {here}")
        return None
    torque: dict[int, int] = {}
    if isinstance(config.robot, SOFollowerConfig):
        sound = True
        for finding in _so_arm(config.robot, 1 / (config.fps * config.substeps), torque):
            sound = sound and finding.state != "failed"
            yield finding
        if not sound:
            return None
    try:
        return Arm(stack.enter_context(make_robot(config.robot)), torque)
    except EdgeRuntimeError as error:
        yield ARM.failed("robot", error, "see edge-runtime start --help for its settings")
        return None


def compare_torque(config: SOFollowerConfig, before: dict[int, int]) -> Finding:
    """Whether all that was done has left it as it was."""
    try:
        with bus_of(config) as bus:
            after = servos.torque(bus)
    except EdgeRuntimeError as error:
        return AFTERWARDS.failed("torque", error, "look at the arm: this was not there a second ago")
    if after != before:
        reason = EdgeRuntimeError(f"was {_in_words(before)}, and now is {_in_words(after)}")
        return AFTERWARDS.failed("torque", reason, "this must not happen: please report it")
    return AFTERWARDS.ok("torque", f"{_in_words(before)}, as before")


def _so_arm(config: SOFollowerConfig, period_s: float, torque: dict[int, int]) -> Iterator[Finding]:
    """Notes in `torque` what is energised."""
    try:
        bus = bus_of(config)
    except EdgeRuntimeError as error:
        yield ARM.failed("port", error, "plug the arm in, and look: ls /dev/serial/by-id")
        return
    for finding in port.examine(config.port):
        yield finding
        if finding.state == "failed":
            yield ARM.skipped("servos", "once the port is open")
            return
    try:
        with bus:
            yield from servos.examine(bus, config, period_s)
            torque.update(servos.torque(bus))
    except BusError as error:
        yield ARM.failed("servos", error, "plug the adapter in again")


def _in_words(torque: dict[int, int]) -> str:
    on = [str(servo) for servo, energised in torque.items() if energised]
    return "off" if not on else "on" if len(on) == len(torque) else f"on at {', '.join(on)}"
