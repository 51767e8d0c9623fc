"""LeRobot's calibration file and conversions: the same numbers to the last bit, and a sentence for every wrong file."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_runtime.config import SO101FollowerConfig
from edge_runtime.errors import ConfigError, OutputError
from edge_runtime.motors.calibration import JOINTS, JointCalibration, Mode, differences, load, locate, save

JOINT = JointCalibration(id=1, drive_mode=0, homing_offset=-85, range_min=812, range_max=3304)
REVERSED = replace(JOINT, drive_mode=1)


@pytest.mark.parametrize(
    ("mode", "ticks", "units"),
    [
        (Mode.DEGREES, 812, -109.5385),
        (Mode.DEGREES, 2048, -0.8791),
        (Mode.DEGREES, 2058, 0),
        (Mode.DEGREES, 3304, 109.5385),
        (Mode.DEGREES, 3500, 126.7692),  # not clamped
        (Mode.NORMALIZED, 812, -100),
        (Mode.NORMALIZED, 2048, -0.8026),
        (Mode.NORMALIZED, 3304, 100),
        (Mode.NORMALIZED, 3500, 100),
        (Mode.PERCENT, 812, 0),
        (Mode.PERCENT, 2048, 49.5987),
        (Mode.PERCENT, 3304, 100),
    ],
)
def test_ticks_to_units_as_lerobot(mode: Mode, ticks: int, units: float) -> None:
    assert JOINT.to_units(ticks, mode) == pytest.approx(units, abs=5e-5)


@pytest.mark.parametrize(
    ("joint", "mode", "units", "ticks"),
    [
        (JOINT, Mode.DEGREES, 90, 3081),
        (JOINT, Mode.DEGREES, -90, 1034),
        (JOINT, Mode.DEGREES, 0.05, 2058),  # truncated towards 0, as LeRobot does
        (JOINT, Mode.DEGREES, -0.05, 2057),
        (JOINT, Mode.DEGREES, 200, 4333),  # out of range: clamping is the guard's
        (REVERSED, Mode.DEGREES, 90, 3081),  # ignored for degrees
        (JOINT, Mode.NORMALIZED, 50, 2681),
        (REVERSED, Mode.NORMALIZED, 50, 1435),
        (JOINT, Mode.NORMALIZED, 130, 3304),
        (JOINT, Mode.PERCENT, 50, 2058),
        (JOINT, Mode.PERCENT, -20, 812),
        (REVERSED, Mode.PERCENT, -20, 3304),
    ],
)
def test_units_to_ticks_as_lerobot(joint: JointCalibration, mode: Mode, units: float, ticks: int) -> None:
    assert joint.to_ticks(units, mode) == ticks


def lerobot_normalize(val: int, min_: int, max_: int, drive_mode: int, mode: Mode) -> float:
    """LeRobot's formulas (0.4.4), one line each."""
    bounded = min(max_, max(min_, val))
    return {
        Mode.NORMALIZED: (-1 if drive_mode else 1) * ((((bounded - min_) / (max_ - min_)) * 200) - 100),
        Mode.PERCENT: (lambda norm: 100 - norm if drive_mode else norm)(((bounded - min_) / (max_ - min_)) * 100),
        Mode.DEGREES: (val - (min_ + max_) / 2) * 360 / 4095,
    }[mode]


ranges = st.tuples(st.integers(0, 4095), st.integers(0, 4095)).filter(lambda pair: pair[0] < pair[1])


@given(ranges, st.integers(-2047, 6142), st.sampled_from(Mode), st.integers(0, 1))
def test_bit_equal_to_lerobot(limits: tuple[int, int], ticks: int, mode: Mode, drive_mode: int) -> None:
    joint = JointCalibration(1, drive_mode, 0, *limits)
    assert joint.to_units(ticks, mode) == lerobot_normalize(ticks, *limits, drive_mode, mode)


@pytest.mark.parametrize("joint", [JOINT, JointCalibration(5, 0, 0, 0, 4095)])
def test_degrees_of_every_count_come_back_exactly(joint: JointCalibration) -> None:
    for ticks in range(joint.range_min, joint.range_max + 1):
        assert joint.to_ticks(joint.to_units(ticks, Mode.DEGREES), Mode.DEGREES) == ticks


@given(ranges, st.integers(0, 4095), st.sampled_from(Mode))
def test_a_count_comes_back_as_itself_or_truncated_by_one(limits: tuple[int, int], ticks: int, mode: Mode) -> None:
    """LeRobot's own formulas lose a count where the product falls short by the last bit; so must these."""
    joint = JointCalibration(1, 0, 0, *limits)
    inside = min(max(ticks, limits[0]), limits[1])
    expected = ticks if mode is Mode.DEGREES else inside
    assert joint.to_ticks(joint.to_units(ticks, mode), mode) in (expected, expected - 1)


def test_limits_are_the_range_in_units() -> None:
    assert JOINT.limits(Mode.DEGREES) == pytest.approx((-109.5385, 109.5385), abs=5e-5)
    assert JOINT.limits(Mode.NORMALIZED) == (-100, 100)
    assert REVERSED.limits(Mode.PERCENT) == (0, 100)


# Files.


def entries() -> dict[str, Any]:
    joints = {
        joint: {"id": number, "drive_mode": 0, "homing_offset": -85, "range_min": 812, "range_max": 3304}
        for number, joint in enumerate(JOINTS, start=1)
    }
    joints["wrist_roll"] |= {"range_min": 0, "range_max": 4095}
    return joints


def test_a_file_is_loaded_and_written_as_lerobot_does(tmp_path: Path) -> None:
    path = tmp_path / "arm.json"
    text = json.dumps(entries(), indent=4)
    path.write_text(text)
    calibration = load(path)
    assert calibration["shoulder_pan"] == JOINT
    save(tmp_path / "new" / "copy.json", calibration)
    assert (tmp_path / "new" / "copy.json").read_text() == text


def test_the_order_in_the_file_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "arm.json").write_text(json.dumps(dict(reversed(entries().items()))))
    assert tuple(load(tmp_path / "arm.json")) == JOINTS


@pytest.mark.parametrize(
    ("joint", "field", "value", "message"),
    [
        ("elbow_flex", None, None, "elbow_flex: is missing"),
        ("elbow_flex", None, [1], "elbow_flex: [1] is not an object"),
        (
            "elbow",
            None,
            {},
            "elbow: 'elbow' is not one of shoulder_pan, ",
        ),
        ("antenna", None, {}, "antenna: 'antenna' is not one of shoulder_pan, "),
        ("gripper", "range_max", None, "gripper.range_max: is missing"),
        ("gripper", "range", 1, "gripper.range: is not known; did you mean range_m"),
        ("gripper", "range_min", "812", "gripper.range_min: '812' is not a whole number in 0..4095"),
        ("gripper", "range_min", 812.0, "gripper.range_min: 812.0 is not a whole number"),
        ("gripper", "drive_mode", True, "gripper.drive_mode: true is not a whole number"),
        ("gripper", "drive_mode", 2, "gripper.drive_mode: 2 is not in 0..1"),
        ("gripper", "id", 3, "gripper.id: is 3, and this arm has gripper at id 6"),
        ("gripper", "homing_offset", 2048, "gripper.homing_offset: 2048 is not in -2047..2047"),
        ("gripper", "range_min", -1, "gripper.range_min: -1 is not in 0..4095"),
        ("gripper", "range_max", 4096, "gripper.range_max: 4096 is not in 0..4095"),
        ("gripper", "range_min", 3304, "gripper.range_min: 3304 is not below range_max 3304"),
        ("gripper", "range_max", 200, "across 4095 -> 0 cannot be used"),  # 812 .. 4095, 0 .. 200
    ],
)
def test_a_wrong_file_gets_one_sentence(
    tmp_path: Path, joint: str, field: str | None, value: Any, message: str
) -> None:
    content = entries()
    place, key = (content, joint) if field is None else (content[joint], field)
    place[key] = value
    if value is None:
        del place[key]
    path = tmp_path / "arm.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert f"calibration {path}: " in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 78


def test_a_recording_across_the_wrap_is_refused(tmp_path: Path) -> None:
    """It looks like a whole turn; only wrist_roll has one."""
    content = entries()
    content["shoulder_lift"] |= {"range_min": 0, "range_max": 4095}
    (tmp_path / "arm.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"shoulder_lift\.range_max: 0\.\.4095 is a whole turn.*calibrate again"):
        load(tmp_path / "arm.json")


@pytest.mark.parametrize("text", ["", "{", "[]", "12", '"x"', "\x00\xff"])
def test_what_is_no_calibration_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "arm.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=f"calibration {path}: .*is "):
        load(path)


def test_an_unreadable_file_and_an_unwritable_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path)
    with pytest.raises(OutputError, match="cannot be written"):
        save(tmp_path, {})


# Places.


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HF_LEROBOT_CALIBRATION", "HF_LEROBOT_HOME", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def put(folder: Path, name: str = "black") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text("{}")
    return folder / f"{name}.json"


@pytest.mark.parametrize("folder", ["so_follower", "so101_follower", "so100_follower"])
def test_found_where_lerobot_keeps_it(home: Path, folder: str) -> None:
    path = put(home / ".cache/huggingface/lerobot/calibration/robots" / folder)
    assert locate(SO101FollowerConfig(id="black")) == path


def test_the_newer_folder_wins(home: Path) -> None:
    base = home / ".cache/huggingface/lerobot/calibration/robots"
    put(base / "so101_follower")
    newer = put(base / "so_follower")
    assert locate(SO101FollowerConfig(id="black")) == newer


@pytest.mark.parametrize(
    ("variable", "below"),
    [
        ("HF_LEROBOT_CALIBRATION", ""),
        ("HF_LEROBOT_HOME", "calibration"),
        ("HF_HOME", "lerobot/calibration"),
        ("XDG_CACHE_HOME", "huggingface/lerobot/calibration"),
    ],
)
def test_lerobots_environment_counts(home: Path, monkeypatch: pytest.MonkeyPatch, variable: str, below: str) -> None:
    monkeypatch.setenv(variable, str(home / "elsewhere"))
    path = put(home / "elsewhere" / below / "robots/so_follower")
    assert locate(SO101FollowerConfig(id="black")) == path


def test_calibration_dir_is_the_only_place(home: Path) -> None:
    put(home / ".cache/huggingface/lerobot/calibration/robots/so_follower")
    config = SO101FollowerConfig(id="black", calibration_dir=home / "mine")
    said = f"'black' has no calibration file {home}/mine/black.json; edge-runtime calibrate makes it$"
    with pytest.raises(ConfigError, match=said):
        locate(config)
    path = put(home / "mine")
    assert locate(config) == path


def test_a_missing_file_suggests_what_is_there(home: Path) -> None:
    put(home / "mine", "black_arm")
    with pytest.raises(ConfigError, match="did you mean 'black_arm'"):
        locate(SO101FollowerConfig(id="blck_arm", calibration_dir=home / "mine"))
    with pytest.raises(ConfigError, match="calibrated here: black_arm"):
        locate(SO101FollowerConfig(id="z", calibration_dir=home / "mine"))
    with pytest.raises(ConfigError, match=r"robot\.id: not given"):
        locate(SO101FollowerConfig(calibration_dir=home / "mine"))


def test_differences_name_joint_file_and_servo() -> None:
    servos = {"shoulder_pan": {"homing_offset": -85, "range_min": 812, "range_max": 3000}}
    assert differences({"shoulder_pan": JOINT}, servos) == ["shoulder_pan.range_max: file 3304, servo 3000"]


def test_the_form_of_before_lerobots_rewrite_is_told_as_such(tmp_path: Path) -> None:
    old = {"motor_names": [*JOINTS], "homing_offset": [0] * 6, "drive_mode": [0] * 6, "calib_mode": ["DEGREE"] * 6}
    file = tmp_path / "main_follower.json"
    file.write_text(json.dumps(old))
    with pytest.raises(ConfigError, match=r"motor_names: .*before its rewrite.*edge-runtime calibrate"):
        load(file)
