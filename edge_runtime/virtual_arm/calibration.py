"""The virtual arm's calibration: tick 2048 is 0 degrees, and the ranges just hold those of the model's actuators."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from edge_runtime.motors.calibration import JointCalibration, save

CALIBRATION = {
    "shoulder_pan": JointCalibration(1, 0, 0, 796, 3300),  # ±110 degrees
    "shoulder_lift": JointCalibration(2, 0, 0, 910, 3186),  # ±100
    "elbow_flex": JointCalibration(3, 0, 0, 946, 3150),  # ±96.8
    "wrist_flex": JointCalibration(4, 0, 0, 967, 3129),  # ±95
    "wrist_roll": JointCalibration(5, 0, 0, 0, 4095),  # as LeRobot has it on every arm
    "gripper": JointCalibration(6, 0, 0, 1934, 3186),  # -10..100 degrees, which are 0..100 %
}

Vector = npt.NDArray[np.float64]

_LOW = np.array([each.range_min for each in CALIBRATION.values()], dtype=np.float64)
_HIGH = np.array([each.range_max for each in CALIBRATION.values()], dtype=np.float64)
_ZERO: Vector = (_LOW + _HIGH) / 2
_ZERO[5] = _LOW[5]
_UNITS_PER_TICK: Vector = np.full(6, 360 / 4095)
_UNITS_PER_TICK[5] = 100 / (_HIGH[5] - _LOW[5])


def to_units(ticks: Vector) -> Vector:
    """Shaft positions (6,) in ticks -> joint units: degrees, the gripper 0..100; neither clamped nor rounded."""
    return (ticks - _ZERO) * _UNITS_PER_TICK


def to_ticks(units: Vector) -> Vector:
    """Joint units (6,) -> ticks, neither clamped nor rounded."""
    return units / _UNITS_PER_TICK + _ZERO


def write_calibration(folder: Path, robot_id: str) -> Path:
    """Write the LeRobot calibration file of `robot_id` into `folder`; its path."""
    path = folder / f"{robot_id}.json"
    save(path, CALIBRATION)
    return path
