"""`edge-runtime calibrate`: a person moves the arm, and its ranges go to LeRobot's file and into the servos."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import ClassVar

from edge_runtime.config import RobotConfig
from edge_runtime.errors import BusError, OutputError
from edge_runtime.motors import calibration as calibrations
from edge_runtime.motors.bus import Bus
from edge_runtime.motors.calibration import JOINTS, TURNS_FREELY, Calibration, JointCalibration
from edge_runtime.motors.feetech import TICKS_PER_TURN
from edge_runtime.program import flags, output
from edge_runtime.robots import so_servos
from edge_runtime.robots.so_servos import FIELD_REGISTERS, IDS, MULTI_TURN
from edge_runtime.tools.bringup.arm import bus_of, so_arm
from edge_runtime.tools.bringup.terminal import Terminal
from edge_runtime.tools.bringup.travel import Range, Travel, homing_offset

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LAST_TICK = TICKS_PER_TURN - 1
LOOK_EVERY_S = 0.03
LEAST = 400  # ticks, 35 degrees: a joint that moved less was forgotten

_REGISTERS = ("Phase", "Operating_Mode", *FIELD_REGISTERS.values())
_MEASURED = [joint for joint in JOINTS if joint != TURNS_FREELY]


@dataclass
class CalibrateConfig:
    """Record the range of each joint of an arm, as LeRobot does, in its file and in the servos."""

    ESSENTIALS: ClassVar[tuple[str, ...]] = ("robot.type", "robot.port", "robot.id", "robot.calibration_dir")

    robot: RobotConfig
    debug: bool = False  # tracebacks


def main(argv: list[str]) -> int:
    config = flags.parse(CalibrateConfig, argv, prog="edge-runtime calibrate")
    file = calibrations.destination(so_arm(config.robot))
    output.make_folder(file.parent, "robot.calibration_dir")  # told before a person has moved the arm
    output.check(file, "robot.id")
    terminal = Terminal("calibrate")
    for number in ENDING:  # a window that is closed ends it as Ctrl-C does
        signal.signal(number, _end)
    with bus_of(config.robot) as bus:
        so_servos.check_models(bus)
        terminal.say(f"Calibrating {config.robot.id} on {bus.port}. Ctrl-C leaves its servos as they were.\n")
        old = calibrations.load(file) if file.exists() and not _wants_new(terminal, file) else None
        _let_go(terminal, bus)
        with _put_back_unless_done(terminal, bus):
            calibration = old or _measure(terminal, bus)
            _write(bus, calibration)
            _ignore_signals()  # from here on it is done to the end
            if old is None:
                _save(terminal, file, calibration)
    terminal.say("wrote offsets and ranges into the servos\n\nNext: edge-runtime doctor, with the same flags")
    return 0


def _end(number: int, frame: FrameType | None) -> None:
    """As Ctrl-C does, but only once: a window that is closed may say so twice, and a person be impatient."""
    _ignore_signals()
    raise KeyboardInterrupt


def _ignore_signals() -> None:
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


def _wants_new(terminal: Terminal, file: Path) -> bool:
    """Whether to measure again, rather than to write the file that is there into the servos."""
    terminal.say(f"There is a calibration already: {file}")
    answer = terminal.ask("Enter measures anew and keeps it as .bak; w and Enter writes it into the servos:")
    terminal.say()
    return answer.lower() != "w"


def _let_go(terminal: Terminal, bus: Bus) -> None:
    """Torque off: what holds itself up is held by a person first."""
    if any(bus.read_all("Torque_Enable", IDS.values()).values()):
        terminal.ask("The arm is energised, and falls when let go. Hold it, then press Enter.")
    bus.establish("Torque_Enable", dict.fromkeys(IDS.values(), 0), tries=5)


@contextmanager
def _put_back_unless_done(terminal: Terminal, bus: Bus) -> Iterator[None]:
    """Memory open for writing inside; whatever ends it early, Ctrl-C above all, puts the servos' memory back."""
    before = {name: bus.read_all(name, IDS.values()) for name in _REGISTERS}
    try:
        bus.establish("Lock", dict.fromkeys(IDS.values(), 0))
        yield
    except BaseException:
        _ignore_signals()
        try:
            for name, values in before.items():
                bus.establish(name, values)
            bus.establish("Lock", dict.fromkeys(IDS.values(), 1))
            terminal.say("\nnothing is changed; torque is off")
        except BusError as error:
            terminal.say(f"\nthe servos are not as they were: {error}; calibrate again before the arm is used")
        raise
    bus.establish("Lock", dict.fromkeys(IDS.values(), 1))


def _measure(terminal: Terminal, bus: Bus) -> Calibration:
    """LeRobot's procedure; ranges across the encoder's end are centred instead of torn."""
    phase = bus.read_all("Phase", IDS.values())
    bus.establish("Phase", {number: value & ~MULTI_TURN for number, value in phase.items()})
    _establish(bus, "Operating_Mode", 0)
    _establish(bus, "Homing_Offset", 0)
    _establish(bus, "Min_Position_Limit", 0)
    _establish(bus, "Max_Position_Limit", LAST_TICK)
    terminal.ask("1. Move every joint to about the middle of its range, then press Enter.")
    shafts = bus.read_all("Present_Position", IDS.values())
    offsets = {number: homing_offset(shaft) for number, shaft in shafts.items()}
    bus.establish("Homing_Offset", offsets)
    terminal.say(f"\n2. Move every joint but {TURNS_FREELY} slowly to both ends of its range.")
    terminal.say("   Press Enter when the table shows all of them.\n")
    with terminal.silent():
        ranges = _follow(terminal, bus, offsets)
    ranges[TURNS_FREELY] = Range(offsets[IDS[TURNS_FREELY]], 0, LAST_TICK)
    return {joint: JointCalibration(IDS[joint], 0, *ranges[joint]) for joint in JOINTS}


def _follow(terminal: Terminal, bus: Bus, offsets: dict[int, int]) -> dict[str, Range]:
    """Show what each joint does until Enter finds that all have moved as far as they should."""
    numbers = [IDS[joint] for joint in _MEASURED]
    ticks = bus.read_all("Present_Position", numbers)
    travels = {joint: Travel(ticks[IDS[joint]]) for joint in _MEASURED}
    complaint = ""
    while True:
        for number, tick in bus.sync_read("Present_Position", numbers).items():
            travels[JOINTS[number - 1]].follow(tick)
        terminal.show([*_table(travels), complaint])
        if not terminal.enter_within(LOOK_EVERY_S):
            continue
        wide = [joint for joint, travel in travels.items() if not travel.is_range]
        forgotten = [joint for joint, travel in travels.items() if travel.span < LEAST]
        if wide:
            travels |= {joint: Travel(travels[joint].now % TICKS_PER_TURN) for joint in wide}
            complaint = f"   a whole turn, measured again from here: {', '.join(wide)}"
        elif forgotten:
            complaint = f"   not moved yet: {', '.join(forgotten)}"
        else:
            return {joint: travel.settle(offsets[IDS[joint]]) for joint, travel in travels.items()}


def _table(travels: dict[str, Travel]) -> list[str]:
    lines = [f"   {'joint':<16}{'lowest':>8}{'now':>8}{'highest':>9}{'range':>9}"]
    for joint, travel in travels.items():
        mark = "✓" if travel.span >= LEAST else " "
        degrees = travel.span * 360 / TICKS_PER_TURN
        lines.append(f" {mark} {joint:<16}{travel.low:>8}{travel.now:>8}{travel.high:>9}{degrees:>8.0f}°")
    return lines


def _write(bus: Bus, calibration: Calibration) -> None:
    for field, register in FIELD_REGISTERS.items():
        bus.establish(register, {entry.id: getattr(entry, field) for entry in calibration.values()})


def _save(terminal: Terminal, file: Path, calibration: Calibration) -> None:
    """The file, and the one before it as .bak."""
    kept = file.with_name(f"{file.name}.bak")
    if file.exists():
        try:
            shutil.copyfile(file, kept)
        except OSError as error:
            raise OutputError(f"calibration {kept}: cannot be written: {error.strerror}") from error
        terminal.say(f"the one before is {kept}")
    calibrations.save(file, calibration)
    terminal.say(f"wrote {file}")


def _establish(bus: Bus, name: str, value: int) -> None:
    bus.establish(name, dict.fromkeys(IDS.values(), value))
