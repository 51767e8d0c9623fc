"""The six servos of an SO arm: whether they are the right ones, and what LeRobot keeps in their memory."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from edge_runtime.config import SOFollowerConfig
from edge_runtime.errors import BusError, ConfigError
from edge_runtime.motors.bus import TIMEOUT_S, Bus
from edge_runtime.motors.calibration import JOINTS, JointCalibration, differences
from edge_runtime.motors.feetech import MODELS

MODEL = 777  # STS3215, which LeRobot demands too; an STS3250 differs in torque and current
IDS = {joint: number for number, joint in enumerate(JOINTS, start=1)}
GRIPPER = "gripper"
COOL = 8  # degrees below the limit

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
    major = bus.read_all("Firmware_Major_Version", IDS.values())
    minor = bus.read_all("Firmware_Minor_Version", IDS.values())
    versions = {number: f"{major[number]}.{minor[number]}" for number in IDS.values()}
    if len(set(versions.values())) > 1:
        listed = ", ".join(f"{bus.label(number)} {version}" for number, version in versions.items())
        raise BusError(f"the servos have different firmware: {listed}; Feetech's tool updates it", port=bus.port)


def check_temperature(bus: Bus, limit: int) -> None:
    """BusError unless all six are well below `limit` (degrees Celsius; 0 = none), so that it is not reached at once."""
    for number, celsius in bus.read_all("Present_Temperature", IDS.values()).items():
        if limit and celsius > limit - COOL:
            raise BusError(
                f"{bus.label(number)} is {celsius} °C hot: robot.max_temperature lets it start at {limit - COOL}",
                port=bus.port,
                motor=number,
            )


def check_calibration(bus: Bus, calibration: Mapping[str, JointCalibration], file: Path) -> None:
    """ConfigError with every difference between `calibration`, read from `file`, and what the servos hold."""
    found: dict[str, dict[str, int]] = {joint: {} for joint in JOINTS}
    for field, register in FIELD_REGISTERS.items():
        for number, value in bus.read_all(register, IDS.values()).items():
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


def write_memory(bus: Bus, wanted: Memory) -> None:
    """Write what differs from `wanted`, and clear the multi-turn bit; torque goes off only if there is something."""
    phase = bus.read_all("Phase", IDS.values())
    wanted = {**wanted, "Phase": {number: value & ~MULTI_TURN for number, value in phase.items()}}
    changes: Memory = {}
    for name, values in wanted.items():
        found = bus.read_all(name, values)
        if different := {number: value for number, value in values.items() if found[number] != value}:
            changes[name] = different
    if not changes:
        return
    logger.info("torque goes off, to write %s", ", ".join(changes))
    bus.establish("Torque_Enable", dict.fromkeys(IDS.values(), 0), tries=5)
    bus.establish("Lock", dict.fromkeys(IDS.values(), 0))
    for name, values in changes.items():
        bus.establish(name, values)
