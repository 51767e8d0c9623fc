"""The calibration file and the manifest, field by field: missing, unknown, of the wrong type, out of range."""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from edge_runtime.errors import ModelError
from edge_runtime.motors.calibration import JOINTS, JointCalibration
from edge_runtime.virtual_arm.calibration import write_calibration
from policy_server import bundle
from tests.bad_input.conftest import Answer

# LeRobot's calibration file, through the program that reads it.

START = ("edge-runtime start", "--robot.type=so101_follower", "--robot.port=/dev/none", "--robot.id=it", "--dry_run")
FIELDS = [field.name for field in fields(JointCalibration)]
BEYOND = {
    "id": (7, "is 7, and this arm has elbow_flex at id 3"),
    "drive_mode": (2, "2 is not in 0..1"),
    "homing_offset": (-2048, "-2048 is not in -2047..2047"),
    "range_min": (-1, "-1 is not in 0..4095"),
    "range_max": (4096, "4096 is not in 0..4095"),
}
TOGETHER = [
    ("elbow_flex", {"range_min": 3000, "range_max": 1000}, "elbow_flex.range_min: 3000 is not below range_max 1000"),
    ("elbow_flex", {"range_min": 0, "range_max": 4095}, "elbow_flex.range_max: 0..4095 is a whole turn"),
]


@pytest.fixture
def spoilt(tmp_path: Path, answer: Answer) -> Callable[[Callable[[dict[str, Any]], object]], str]:
    """What the program says, after the file's name, of a calibration that was changed."""

    def run(change: Callable[[dict[str, Any]], object]) -> str:
        file = write_calibration(tmp_path, "it")
        content = json.loads(file.read_text())
        change(content)
        file.write_text(json.dumps(content))
        code, said = answer(*START, f"--robot.calibration_dir={tmp_path}")
        assert code == 78
        assert said.startswith(f"calibration {file}: ")
        return said.removeprefix(f"calibration {file}: ")

    return run


@pytest.mark.parametrize("name", FIELDS)
def test_each_field_of_a_joint(spoilt: Callable[..., str], name: str) -> None:
    joint = "elbow_flex"
    assert spoilt(lambda c: c[joint].pop(name)).startswith(f"{joint}.{name}: is missing, expected a whole number")
    for value, shown in (("812", "'812'"), (1.5, "1.5"), (True, "true"), (None, "null"), ([1], "[1]")):
        said = spoilt(lambda c, value=value: c[joint].update({name: value}))
        assert said.startswith(f"{joint}.{name}: {shown} is not a whole number")
    value, beyond = BEYOND[name]
    assert spoilt(lambda c: c[joint].update({name: value})) == f"{joint}.{name}: {beyond}"
    said = spoilt(lambda c: c[joint].update({f"{name}s": 1}))
    assert said == f"{joint}.{name}s: is not known; did you mean {name}?"


@pytest.mark.parametrize("joint", JOINTS)
def test_each_joint(spoilt: Callable[..., str], joint: str) -> None:
    assert spoilt(lambda c: c.pop(joint)) == f"{joint}: is missing"
    assert spoilt(lambda c: c.update({joint: [1]})) == f"{joint}: [1] is not an object"
    said = spoilt(lambda c: c.update({f"{joint}s": c[joint]}))
    assert said == f"{joint}s: '{joint}s' is not one of {', '.join(JOINTS)}; did you mean {joint}?"


@pytest.mark.parametrize(("joint", "values", "said"), TOGETHER)
def test_fields_that_do_not_go_together(
    spoilt: Callable[..., str], joint: str, values: dict[str, int], said: str
) -> None:
    assert spoilt(lambda c: c[joint].update(values)).startswith(said)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\xff\xfe\xfd", "is not JSON, nor text at all"),
        (b'{\n "shoulder_pan": {"id": 1,', "is not JSON: line 2: expecting property name enclosed in double quotes"),
        (b"[]", "[] is not an object"),
        (b"12", "12 is not an object"),
        (b"[" * 100_000, "is not JSON: it is nested too deeply"),
    ],
)
def test_a_file_that_is_no_calibration(answer: Answer, tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "it.json").write_bytes(content)
    code, line = answer(*START, f"--robot.calibration_dir={tmp_path}")
    assert (code, line) == (78, f"calibration {tmp_path}/it.json: {said}")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (os.mkfifo, "cannot be read: Not a regular file"),
        (Path.mkdir, "cannot be read: Is a directory"),
        (lambda path: path.symlink_to("nowhere"), "cannot be read: No such file or directory"),
    ],
)
def test_what_is_no_file_at_all(answer: Answer, tmp_path: Path, make: Callable[[Path], object], said: str) -> None:
    make(tmp_path / "it.json")
    code, line = answer(*START, f"--robot.calibration_dir={tmp_path}")
    assert (code, line) == (78, f"calibration {tmp_path}/it.json: {said}")


# A bundle's manifest.

TEXT, OBJECT = "text of 1 to 128 printable characters", "an object"
PLAIN = f"{TEXT}, without / and not"
KEYS: dict[str, list[tuple[Any, str]]] = {  # wrong values, and what was expected
    "format": [("1", "one of 1, 2"), (3, "one of 1, 2")],
    "name": [(wrong, PLAIN) for wrong in ("", 3, "a\nb", "x" * 129, None, "../x", ".x")],
    "type": [("", TEXT), (None, TEXT)],
    "precision": [("fp8", "one of fp32, fp16"), (None, "one of fp32, fp16")],
    "joints": [
        ([], "a list of at least 1 objects"),
        ({}, "a list of at least 1 objects"),
        (["a"], "an object"),
    ],
    "cameras": [({"front": 1}, "a list of objects"), (None, "a list of objects")],
    "extra_state": [("x", "a list of objects")],
    "chunk_size": [(0, "in 1..4096"), (50.0, "a whole number in 1..4096"), (True, "a whole number")],
    "action_dim": [(32, "6, the number of joints"), ("6", "a whole number in 1..4096")],
    "fps": [(0, "in 0.1..1000"), (float("nan"), "a number in 0.1..1000"), (None, "a number in 0.1..1000")],
    "uses_task": [(0, "true or false"), ("no", "true or false"), (None, "true or false")],
    "temporal_ensemble_coeff": [("x", "a number in -10..10"), (11, "in -10..10")],
    "robot_type": [(3, TEXT), ("", TEXT)],
    "graphs": [([], OBJECT), ({"policy": "other.onnx"}, "a file that the manifest lists"), ({"policy": 1}, TEXT)],
    "files": [([], OBJECT), ({"policy.onnx": 1}, OBJECT), ({"../x": {"bytes": 0, "sha256": "0"}}, "a path inside the")],
    "provenance": [(None, OBJECT), ("x", OBJECT)],
    "parity": [([], OBJECT)],
}
TEXT_OF_STATE = {"centre": [0.0] * 6, "divisor": [1.0] * 6, "offset": [0.0] * 6, "numbers": 32}
SCALED = {"scale": [1.0] * 6, "offset": [0.0] * 6}
ADDED: dict[str, list[tuple[Any, str]]] = {  # by format 2, where none has to be there
    "action_scaling": [
        ([], OBJECT),
        (SCALED | {"scale": [1.0]}, "a number for each joint"),
        (SCALED | {"offset": ["0"] * 6}, "a number"),
    ],
    "guided": [(1, "true or false")],
    "trained_delay": [(-1, "in 0..4096"), (1.5, "a whole number in 0..4096"), (50, "less than chunk_size 50")],
    "state_offset": [(None, "true or false")],
    "n_obs_steps": [(0, "in 1..64"), (1.0, "a whole number in 1..64")],
    "steps": [(1001, "in 0..1000"), ("10", "a whole number in 0..1000")],
    "state_text": [
        ([], OBJECT),
        (TEXT_OF_STATE | {"offset": [0.0]}, "a number for each joint"),
        (TEXT_OF_STATE | {"numbers": 0}, "in 1..4096"),
    ],
}
ROWS: dict[tuple[str, str], list[tuple[Any, str]]] = {  # list, key of its first row
    ("joints", "name"): [(None, TEXT), ("shoulder_lift.pos", "a list of distinct names")],
    ("joints", "unit"): [("", TEXT), (1, TEXT)],
    ("cameras", "name"): [("", TEXT), ("wrist", "a list of distinct names")],
    ("cameras", "height"): [(0, "in 1..8192"), ("96", "a whole number in 1..8192")],
    ("cameras", "width"): [(9000, "in 1..8192"), (True, "a whole number in 1..8192")],
    ("extra_state", "name"): [("", TEXT)],
    ("extra_state", "dimension"): [(0, "in 1..65536"), (1.5, "a whole number in 1..65536")],
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that is right, with something in each of its lists."""
    folder = tmp_path_factory.mktemp("bundle") / "whole"
    shutil.copytree(bundle.SHIPPED / "act_so101_pick_place", folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["cameras"] = [{"name": name, "height": 96, "width": 96} for name in ("static", "wrist")]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert bundle.load(folder).policy.cameras
    return folder


@pytest.fixture
def refused(whole: Path) -> Callable[[Callable[[dict[str, Any]], object]], str]:
    """The sentence about a manifest that was changed, after the file's name."""
    file = whole / "manifest.json"
    right = json.loads(file.read_text())

    def run(change: Callable[[dict[str, Any]], object]) -> str:
        manifest = copy.deepcopy(right)
        change(manifest)
        file.write_text(json.dumps(manifest))
        try:
            with pytest.raises(ModelError) as caught:
                bundle.load(whole)
        finally:
            file.write_text(json.dumps(right))
        said = str(caught.value)
        assert said.startswith(f"{file}: ")
        assert "\n" not in said
        return said.removeprefix(f"{file}: ")

    return run


def test_all_keys_of_a_manifest_are_here() -> None:
    assert {*KEYS, *ADDED} == {field.name for field in fields(bundle.Manifest)}
    assert set(ADDED) == set(bundle.ADDED)
    for shipped in bundle.SHIPPED.iterdir():
        manifest = json.loads((shipped / "manifest.json").read_text())
        assert manifest.keys() - ADDED.keys() == KEYS.keys()


@pytest.mark.parametrize("key", KEYS)
def test_each_key_of_a_manifest(refused: Callable[..., str], key: str) -> None:
    assert refused(lambda m: m.pop(key)).startswith(f"{key}: is missing, expected ")
    assert refused(lambda m: m.update({f"{key}_": 1})) == f"{key}_: is not known; did you mean {key}?"
    for value, expected in KEYS[key]:
        said = refused(lambda m, value=value: m.update({key: value}))
        assert said.startswith((f"{key}: ", f"{key}[0]: ", f"{key}."))
        assert f" is not {expected}" in said


@pytest.mark.parametrize("key", ADDED)
def test_each_key_that_format_2_added(refused: Callable[..., str], key: str) -> None:
    assert refused(lambda m: m.update({f"{key}_": 1})) == f"{key}_: is not known; did you mean {key}?"
    for value, expected in ADDED[key]:
        said = refused(lambda m, value=value: m.update({"format": 2, key: value}))
        assert said.startswith((f"{key}: ", f"{key}."))
        assert f" is not {expected}" in said
    said = refused(lambda m: m.update({"format": 1, key: False}))
    assert said == f"{key}: belongs to format 2, and this is format 1"


def test_what_format_2_needs_together(refused: Callable[..., str]) -> None:
    said = refused(lambda m: m.update({"format": 2, "guided": True, "action_scaling": None}))
    assert said == "action_scaling: is missing, and guided needs it"
    said = refused(lambda m: m.update({"format": 2, "action_scaling": SCALED | {"scale": [0.0] * 6}}))
    assert said.startswith("action_scaling.scale: ")
    assert said.endswith("holds a 0, which nothing divides by")
    said = refused(lambda m: m.update({"format": 2, "state_text": TEXT_OF_STATE | {"numbers": 3}}))
    assert said == "state_text.numbers: 3 is less than one for each joint"


@pytest.mark.parametrize(("table", "key"), ROWS)
def test_each_key_of_a_row(refused: Callable[..., str], table: str, key: str) -> None:
    assert refused(lambda m: m[table][0].pop(key)).startswith(f"{table}[0].{key}: is missing, expected ")
    said = refused(lambda m: m[table][0].update({f"{key}_": 1}))
    assert said == f"{table}[0].{key}_: is not known; did you mean {key}?"
    for value, expected in ROWS[table, key]:
        said = refused(lambda m, value=value: m[table][0].update({key: value}))
        assert said.startswith((f"{table}[0].{key}: ", f"{table}: ["))
        assert f" is not {expected}" in said


@pytest.mark.parametrize("key", ["bytes", "sha256"])
def test_each_key_of_a_listed_file(refused: Callable[..., str], key: str) -> None:
    assert refused(lambda m: m["files"]["policy.onnx"].pop(key)).startswith(f"files.policy.onnx.{key}: is missing, ")
    said = refused(lambda m: m["files"]["policy.onnx"].update({f"{key}_": 1}))
    assert said == f"files.policy.onnx.{key}_: is not known; did you mean {key}?"
    said = refused(lambda m: m["files"]["policy.onnx"].update({key: None}))
    assert said.startswith(f"files.policy.onnx.{key}: null is not ")
