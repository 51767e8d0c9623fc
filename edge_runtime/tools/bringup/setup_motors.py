"""`edge-runtime setup-motors`: the six servos of a new arm, one at a time, get the ids of their joints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from edge_runtime.config import RobotConfig
from edge_runtime.errors import BusError, BusTimeout, ConfigError
from edge_runtime.motors.bus import Bus
from edge_runtime.motors.calibration import JOINTS
from edge_runtime.motors.port import BAUD
from edge_runtime.program import flags
from edge_runtime.program.schema import hint
from edge_runtime.robots import so_servos
from edge_runtime.robots.so_servos import IDS
from edge_runtime.tools.bringup import identity
from edge_runtime.tools.bringup.arm import bus_of
from edge_runtime.tools.bringup.identity import Identity
from edge_runtime.tools.bringup.terminal import Terminal


@dataclass
class SetupMotorsConfig:
    """Give each servo of a new arm the id of its joint, and 1 Mbit/s. One servo at a time is on the adapter."""

    ESSENTIALS: ClassVar[tuple[str, ...]] = ("robot.type", "robot.port")

    robot: RobotConfig
    joint: str | None = None  # only this one's, such as gripper, after a servo was replaced
    debug: bool = False  # tracebacks

    def __post_init__(self) -> None:
        if self.joint is not None and self.joint not in JOINTS:
            raise ConfigError(f"joint: {self.joint!r} is no joint of this arm; {hint(self.joint, JOINTS)}")


def main(argv: list[str]) -> int:
    config = flags.parse(SetupMotorsConfig, argv, prog="edge-runtime setup-motors")
    bus = bus_of(config.robot)
    terminal = Terminal("setup-motors")
    joints = [config.joint] if config.joint else list(reversed(JOINTS))  # as LeRobot: from the gripper down
    with bus:
        terminal.say(f"Servos on {bus.port}: one at a time, Ctrl-C ends. All get {BAUD} bit/s.\n")
        for number, joint in enumerate(joints):
            _set_up(terminal, bus, joint, joints[:number])
        if not config.joint:
            _check_chain(terminal, bus)
    return 0


def _set_up(terminal: Terminal, bus: Bus, joint: str, done: Sequence[str]) -> None:
    """Ask until the servo of `joint` has its id; those that are `done` keep theirs."""
    wanted = Identity(IDS[joint], BAUD)
    taken = {Identity(IDS[each], BAUD): each for each in done}
    while True:
        terminal.ask(f"Connect the {joint}'s servo only, then press Enter.")
        try:
            found = identity.find(bus)
            if found in taken:
                raise BusError(
                    f"this is still the {taken[found]}'s servo ({found}): connect the {joint}'s. If it is "
                    f"the {joint}'s, end here, and set it up with --joint={joint}",
                    port=bus.port,
                )
            if found != wanted:
                identity.assign(bus, found, wanted.id)
        except BusError as error:
            if not bus.is_open:
                raise
            terminal.mark("✗", str(error))
        else:
            terminal.mark("✓", f"{joint}: {wanted}, " + ("as it was" if found == wanted else f"was {found}"))
            return


def _check_chain(terminal: Terminal, bus: Bus) -> None:
    """Ask until all six answer on one cable."""
    while True:
        terminal.ask("\nNow chain all six servos together, then press Enter.")
        try:
            so_servos.check_models(bus)
            so_servos.check_firmware(bus)
        except (BusError, BusTimeout) as error:
            if not bus.is_open:
                raise
            terminal.mark("✗", str(error))
        else:
            terminal.mark("✓", "all six answer")
            terminal.say("\nNext: edge-runtime calibrate, with the same flags and --robot.id=NAME")
            return
