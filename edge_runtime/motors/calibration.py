"""LeRobot's calibration file of an SO-100 or SO-101, and its conversions between servo ticks and joint units."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from edge_runtime.config import SOFollowerConfig
from edge_runtime.errors import ConfigError, OutputError
from edge_runtime.program import files, output, schema
from edge_runtime.program.schema import Range, nearest

JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")  # ids 1..6
Joint = Literal[JOINTS]  # type: ignore[valid-type]
TURNS_FREELY = "wrist_roll"  # LeRobot gives it the whole turn

_LAST_TICK = 4095
_FULL_TURN_DIVISOR = 4095  # LeRobot divides by the resolution - 1, though a turn has 4096 counts
_LARGEST_SPAN = 4000  # no other joint can travel so far: its recording crossed 4095 -> 0
_FOLDERS = ("so_follower", "so101_follower", "so100_follower")  # the last two until LeRobot merged the arms


class Mode(IntEnum):
    """LeRobot's three normalisations; the numbers are those of `_realtime.FeetechPort`."""

    DEGREES = 0
    NORMALIZED = 1  # -100..100
    PERCENT = 2  # 0..100


UNITS = {Mode.DEGREES: "degrees", Mode.NORMALIZED: "normalized", Mode.PERCENT: "percent"}


@dataclass(frozen=True)
class JointCalibration:
    """One joint of the file; offset and range in ticks, as they are in the servo."""

    id: int
    drive_mode: Annotated[int, Range(0, 1)]
    homing_offset: Annotated[int, Range(-2047, 2047)]
    range_min: Annotated[int, Range(0, _LAST_TICK)]
    range_max: Annotated[int, Range(0, _LAST_TICK)]

    def to_units(self, ticks: int, mode: Mode) -> float:
        """Ticks -> units, in LeRobot's order of operations; clamped to the range, but degrees are not."""
        low, high = self.range_min, self.range_max
        if mode is Mode.DEGREES:
            return (ticks - (low + high) / 2) * 360 / _FULL_TURN_DIVISOR
        inside = min(high, max(low, ticks))
        if mode is Mode.NORMALIZED:
            value = ((inside - low) / (high - low)) * 200 - 100
            return -value if self.drive_mode else value
        value = ((inside - low) / (high - low)) * 100
        return 100 - value if self.drive_mode else value

    def to_ticks(self, units: float, mode: Mode) -> int:
        """Units -> ticks, truncated as LeRobot truncates; clamped to the range, but degrees are not."""
        low, high = self.range_min, self.range_max
        if mode is Mode.DEGREES:
            return int((units * _FULL_TURN_DIVISOR / 360) + (low + high) / 2)
        if mode is Mode.NORMALIZED:
            inside = min(100.0, max(-100.0, -units if self.drive_mode else units))
            return int(((inside + 100) / 200) * (high - low) + low)
        inside = min(100.0, max(0.0, 100 - units if self.drive_mode else units))
        return int((inside / 100) * (high - low) + low)

    def ticks_per_unit(self, mode: Mode) -> float:
        """How far a joint unit is."""
        if mode is Mode.DEGREES:
            return _FULL_TURN_DIVISOR / 360
        return (self.range_max - self.range_min) / (200 if mode is Mode.NORMALIZED else 100)

    def limits(self, mode: Mode) -> tuple[float, float]:
        """The range in units, low and high."""
        if mode is Mode.DEGREES:
            return self.to_units(self.range_min, mode), self.to_units(self.range_max, mode)
        return (-100.0, 100.0) if mode is Mode.NORMALIZED else (0.0, 100.0)


Calibration = dict[str, JointCalibration]


def locate(config: SOFollowerConfig) -> Path:
    """The file of `config.id`: in `calibration_dir`, else where LeRobot keeps it. ConfigError when it is not there."""
    if not config.id:
        raise ConfigError("robot.id: not given, and the calibration file is named for it (--robot.id=NAME)")
    candidates = [folder / f"{config.id}.json" for folder in _folders(config.calibration_dir)]
    for path in candidates:
        if os.path.lexists(path):  # whatever it is: `load` says what is wrong with it
            return path
    known = sorted({path.stem for each in candidates for path in each.parent.glob("*.json")})
    near = nearest(config.id, known)
    others = f"; did you mean {near!r}?" if near else f"; calibrated here: {', '.join(known[:9])}" if known else ""
    make = "" if near else "; edge-runtime calibrate makes it"
    raise ConfigError(f"robot.id: {config.id!r} has no calibration file {candidates[0]}{others}{make}")


def destination(config: SOFollowerConfig) -> Path:
    """Where the file of `config.id` is, or belongs. ConfigError without an id."""
    try:
        return locate(config)
    except ConfigError:
        if not config.id:
            raise
        return next(iter(_folders(config.calibration_dir))) / f"{config.id}.json"


def load(path: Path) -> Calibration:
    """The calibration in `path`, in the order of JOINTS; ConfigError names the field that cannot be."""
    try:
        return _parse(files.read_json(path))
    except ValueError as error:
        raise ConfigError(f"calibration {path}: {error}") from error


def save(path: Path, calibration: Mapping[str, JointCalibration]) -> None:
    """Write `path` as LeRobot writes it; OutputError when that cannot be done."""
    text = json.dumps({joint: asdict(entry) for joint, entry in calibration.items()}, indent=4)
    output.make_folder(path.parent, f"calibration {path}")
    try:
        beside = path.with_name(f".{path.name}.new")
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)  # a full disk leaves the old one whole
    except OSError as error:
        raise OutputError(f"calibration {path}: cannot be written: {error.strerror or error}") from error


def differences(file: Mapping[str, JointCalibration], servos: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Where the servos (joint -> field -> value, the fields that a servo knows) differ from the file, a clause each."""
    return [
        f"{joint}.{name}: file {getattr(file[joint], name)}, servo {value}"
        for joint, values in servos.items()
        for name, value in values.items()
        if getattr(file[joint], name) != value
    ]


def _folders(calibration_dir: Path | None) -> Iterable[Path]:
    if calibration_dir is not None:
        return [calibration_dir]
    home = Path(os.environ.get("HF_LEROBOT_HOME") or _hugging_face_home() / "lerobot")
    base = Path(os.environ.get("HF_LEROBOT_CALIBRATION") or home / "calibration")
    return [base.expanduser() / "robots" / folder for folder in _FOLDERS]


def _hugging_face_home() -> Path:
    """As huggingface_hub has it, which LeRobot asks."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("HF_HOME") or Path(cache) / "huggingface")


def _parse(content: Any) -> Calibration:
    if isinstance(content, dict) and "motor_names" in content:
        raise ConfigError(
            "motor_names: lists by motor are LeRobot's form from before its rewrite of 2025, in other numbers; "
            "expected a table by joint: edge-runtime calibrate (or lerobot-calibrate) makes it anew"
        )
    joints: Calibration = schema.build_document(dict[Joint, JointCalibration], content)
    for joint in JOINTS:
        if joint not in joints:
            raise ConfigError(f"{joint}: is missing")
    for number, joint in enumerate(JOINTS, start=1):
        _check(joint, number, joints[joint])
    return {joint: joints[joint] for joint in JOINTS}


def _check(joint: str, number: int, entry: JointCalibration) -> None:
    """What the fields must be together."""
    if entry.id != number:
        raise ConfigError(f"{joint}.id: is {entry.id}, and this arm has {joint} at id {number}")
    if entry.range_min >= entry.range_max:
        raise ConfigError(
            f"{joint}.range_min: {entry.range_min} is not below range_max {entry.range_max}; a range across"
            " 4095 -> 0 cannot be used: calibrate again, starting with the joint in mid range"
        )
    if joint != TURNS_FREELY and entry.range_max - entry.range_min > _LARGEST_SPAN:
        raise ConfigError(
            f"{joint}.range_max: {entry.range_min}..{entry.range_max} is a whole turn, so the recording crossed"
            " 4095 -> 0: calibrate again, starting with the joint in mid range"
        )
