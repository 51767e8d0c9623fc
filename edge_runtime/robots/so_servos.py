"""The six servos of an SO arm: whether they are the right ones, and what LeRobot keeps in their memory."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping
from pathlib import Path

from edge_runtime.config import SOFollowerConfig
from edge_runtime.errors import BusError, ConfigError
from edge_runtime.motors.bus import TIMEOUT_S, Bus, is_near
from edge_runtime.motors.calibration import JOINTS, JointCalibration, differences
from edge_runtime.motors.clock import Clock
from edge_runtime.motors.feetech import MODELS, TICKS_PER_TURN

MODEL = 777  # STS3215, which LeRobot demands too; an STS3250 differs in torque and current
IDS = {joint: number for number, joint in enumerate(JOINTS, start=1)}
GRIPPER = "gripper"
STILL_TICKS = 10  # between two readings of an arm at rest
STEADY_READINGS = 10
REST_S, RESTS_WITHIN_S = 0.05, 3.0  # between two readings of an arm that has come to rest, and until it has
AGAIN = 3  # readings, of an arm that was still
ATTEMPTS = 5  # to give a servo its force
FAR_GOAL_DEGREES = 3.0  # more than gravity makes a joint that holds itself up hang

FIELD_REGISTERS = {
    "homing_offset": "Homing_Offset",
    "range_min": "Min_Position_Limit",
    "range_max": "Max_Position_Limit",
}
# So that it can grip for long: half its torque, 1.6 A, a quarter once overloaded.
_GRIPPER_REGISTERS = {"Max_Torque_Limit": 500, "Protection_Current": 250, "Overload_Torque": 25}
MULTI_TURN = 0x10  # bit of register Phase; with it, positions are not those of the calibration

Memory = dict[str, dict[int, int]]  # register -> id -> value

logger = logging.getLogger(__name__)


def bus_of(config: SOFollowerConfig) -> Bus:
    """The bus of that arm, which waits as long as a tick of the loop may, and for any adapter long enough."""
    names = {number: joint for joint, number in IDS.items()}
    timeout_s = max(TIMEOUT_S, (config.bus_timeout_ms or 0.0) / 1e3)
    return Bus(config.port, names=names, timeout_s=timeout_s, echo=config.echo)


def check_models(bus: Bus) -> None:
    """BusError unless all six answer and are STS3215."""
    models = bus.sync_read("Model_Number", IDS.values())
    if len(models) == len(IDS):
        models = bus.read_surely("Model_Number", IDS.values())
    if not models:
        noise = ", and what it says is no servo's frame" if bus.stray or bus.damaged else ""
        raise BusError(
            f"robot.port: {bus.port}: none of the six servos answers{noise}: is the 12 V supply on?", port=bus.port
        )
    missing = [number for number in IDS.values() if number not in models]
    if missing:
        who = ", ".join(map(bus.label, missing))
        raise BusError(
            f"robot.port: {bus.port}: no answer from {who}; of six servos {len(models)} answer: check cable and id",
            port=bus.port,
            motor=missing[0],
        )
    for number, model in models.items():
        if model != MODEL:
            raise BusError(
                f"{bus.label(number)} is model {model} ({MODELS.get(model, 'unknown')}),"
                f" expected {MODEL} ({MODELS[MODEL]})",
                port=bus.port,
                motor=number,
            )


def check_firmware(bus: Bus) -> None:
    """BusError unless all six have the same."""
    major = bus.read_surely("Firmware_Major_Version", IDS.values())
    minor = bus.read_surely("Firmware_Minor_Version", IDS.values())
    versions = {number: f"{major[number]}.{minor[number]}" for number in IDS.values()}
    if len(set(versions.values())) > 1:
        listed = ", ".join(f"{bus.label(number)} {version}" for number, version in versions.items())
        raise BusError(f"the servos have different firmware: {listed}; Feetech's tool updates it", port=bus.port)


def check_calibration(bus: Bus, calibration: Mapping[str, JointCalibration], file: Path) -> None:
    """ConfigError with every difference between `calibration`, read from `file`, and what the servos hold."""
    found: dict[str, dict[str, int]] = {joint: {} for joint in JOINTS}
    for field, register in FIELD_REGISTERS.items():
        for number, value in bus.read_surely(register, IDS.values()).items():
            found[JOINTS[number - 1]][field] = value
    if different := differences(calibration, found):
        raise ConfigError(
            f"calibration {file} is not the one in the servos ({'; '.join(different)}):"
            " --robot.write_calibration=true writes the file into them"
        )


def memory(gains: tuple[int, int, int], calibration: Mapping[str, JointCalibration]) -> Memory:
    """What LeRobot writes into registers that a servo keeps; `gains` are P, I, D."""
    everywhere = {
        "Return_Delay_Time": 0,
        "Maximum_Acceleration": 254,
        "Operating_Mode": 0,
        "P_Coefficient": gains[0],
        "I_Coefficient": gains[1],
        "D_Coefficient": gains[2],
    }
    wanted = {name: dict.fromkeys(IDS.values(), value) for name, value in everywhere.items()}
    wanted |= {name: {IDS[GRIPPER]: value} for name, value in _GRIPPER_REGISTERS.items()}
    for field, register in FIELD_REGISTERS.items():
        wanted[register] = {IDS[joint]: getattr(calibration[joint], field) for joint in JOINTS}
    return wanted


def steady_positions(bus: Bus, servos: Collection[int]) -> dict[int, int]:
    """Where `servos` are, by id; BusError unless two readings in a row agree, since a damaged one may pass."""
    found = bus.agreed("Present_Position", servos, STILL_TICKS, STEADY_READINGS)
    if missing := [servo for servo in servos if servo not in found]:
        again = bus.read_all("Present_Position", missing)
        raise BusError(
            f"{bus.label(missing[0])} does not keep still, or its positions cannot be trusted (the last is"
            f" {again[missing[0]]}): hold the arm, and look at the servo cables",
            port=bus.port,
            motor=missing[0],
        )
    return found


def await_rest(bus: Bus, servos: Collection[int], clock: Clock, stop: threading.Event) -> None:
    """Wait until `servos`, which have not all their force, do not sink any more, or until `stop` is set.

    What moves is elsewhere when it is given force than when it was read. BusError where one does not come to rest.
    """
    before, until = steady_positions(bus, servos), clock.now() + RESTS_WITHIN_S
    while not clock.wait(REST_S, stop):
        now = steady_positions(bus, servos)
        moving = [servo for servo in servos if not is_near(now[servo], before[servo], STILL_TICKS)]
        if not moving:
            return
        if clock.now() > until:
            raise BusError(f"{bus.label(moving[0])} does not keep still: hold the arm", port=bus.port, motor=moving[0])
        before = now


def energise(bus: Bus, limits: Mapping[int, int]) -> dict[int, int]:
    """Give the servos of `limits` (id -> Torque_Limit) their force where they are, which is returned.

    At every attempt the position is read and made the goal anew, and read once more before force is given: an arm may
    sink while a lost answer is waited for.
    BusError names the servos that did not confirm.
    """
    here: dict[int, int] = {}
    left = list(limits)
    for _ in range(ATTEMPTS):
        if not left:
            return here
        present = steady_positions(bus, left)
        bus.sync_write("Goal_Position", present)
        if bus.sync_read("Goal_Position", left, tries=1) != present:
            continue
        still = bus.agreed("Present_Position", left, STILL_TICKS, AGAIN)
        if any(servo not in still or abs(still[servo] - present[servo]) > STILL_TICKS for servo in left):
            continue
        bus.sync_write("Torque_Limit", {servo: limits[servo] for servo in left})
        bus.sync_write("Torque_Enable", dict.fromkeys(left, 1))
        here |= present
        force = bus.sync_read("Torque_Limit", left, tries=1)
        on = bus.sync_read("Torque_Enable", left, tries=1)
        left = [servo for servo in left if force.get(servo) != limits[servo] or on.get(servo) != 1]
    if left:
        who = ", ".join(map(bus.label, left))
        raise BusError(
            f"{bus.port}: no force for {who}: goal, limit and torque did not arrive", port=bus.port, motor=left[0]
        )
    return here


def tell_other_goals(bus: Bus, energised: Collection[int], present: Mapping[int, int]) -> None:
    """Torque that is on from before, with a goal elsewhere, would have thrown the arm there."""
    away = []
    for servo, goal in bus.sync_read("Goal_Position", energised).items():
        degrees = (goal - present[servo]) * 360 / TICKS_PER_TURN
        if abs(degrees) > FAR_GOAL_DEGREES:
            away.append(f"{bus.label(servo)} by {degrees:+.1f}°")
    if away:
        logger.warning("torque was on, with goals away from the arm: %s; the arm stays where it is", ", ".join(away))


def differing(bus: Bus, wanted: Memory) -> Memory:
    """Of `wanted`, and of a multi-turn bit that is to be clear, what the servos hold otherwise."""
    phase = bus.read_surely("Phase", IDS.values())
    wanted = {**wanted, "Phase": {number: value & ~MULTI_TURN for number, value in phase.items()}}
    changes: Memory = {}
    for name, values in wanted.items():
        found = bus.read_surely(name, values)
        if different := {number: value for number, value in values.items() if found[number] != value}:
            changes[name] = different
    return changes


def write_memory(bus: Bus, changes: Memory) -> None:
    """Write `changes` for good, with torque off."""
    bus.establish("Torque_Enable", dict.fromkeys(IDS.values(), 0), tries=5)
    bus.establish("Lock", dict.fromkeys(IDS.values(), 0))
    for name, values in changes.items():
        bus.establish(name, values)
