"""A robot that does not fit a policy hears every difference, both sides of each."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest

from edge_runtime.config import StartConfig
from edge_runtime.program import flags
from edge_runtime.wire.fit import differences, extra_cameras, successor_differences
from edge_runtime.wire.messages import Camera, ExtraState, Hello, Joint, Policy
from policy_server.export.cli import ExportConfig

NAMES = ("shoulder_pan.pos", "shoulder_lift.pos", "gripper.pos")
JOINTS = tuple(map(Joint, NAMES, ("degrees", "degrees", "percent")))
STATIC, WRIST = Camera("static", 480, 640), Camera("wrist", 96, 96)
ENVIRONMENT = ExtraState("observation.environment_state", 5)
POLICY = Policy("cubes", "act", b"a" * 32, JOINTS, (STATIC, WRIST), (ENVIRONMENT,), chunk_size=50, fps=30.0)
ROBOT = Hello(JOINTS, (STATIC, WRIST), (ENVIRONMENT,), fps=30.0)


def test_robot_that_fits_hears_nothing() -> None:
    assert differences(ROBOT, POLICY) == []
    assert differences(replace(ROBOT, digest=POLICY.digest, actions_per_chunk=50), POLICY) == []


def test_order_of_cameras_is_of_no_account() -> None:
    assert differences(replace(ROBOT, cameras=(WRIST, STATIC)), POLICY) == []


def test_extra_camera_is_not_a_difference() -> None:
    robot = replace(ROBOT, cameras=(STATIC, Camera("top", 1, 1), WRIST))
    assert differences(robot, POLICY) == []
    assert extra_cameras([camera.name for camera in robot.cameras], POLICY) == ["top"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"protocol_version": 2}, "protocol version: robot 2, server 1"),
        (
            {"joints": JOINTS[::-1]},
            "joints: robot [gripper.pos, shoulder_lift.pos, shoulder_pan.pos], "
            "policy [shoulder_pan.pos, shoulder_lift.pos, gripper.pos]",
        ),
        (
            {"joints": JOINTS[:2]},
            "joints: robot [shoulder_pan.pos, shoulder_lift.pos], "
            "policy [shoulder_pan.pos, shoulder_lift.pos, gripper.pos]",
        ),
        (
            {"joints": (Joint(NAMES[0], "radians"), *JOINTS[1:])},
            "unit of shoulder_pan.pos: robot radians, policy degrees (--robot.use_degrees=true)",
        ),
        (
            {"cameras": (STATIC, Camera("gripper", 96, 96))},
            "cameras: robot [static, gripper], policy [static, wrist] (--rename_map.gripper=wrist)",
        ),
        (
            {"cameras": (Camera("a", 96, 96), Camera("wirst", 96, 96), Camera("statik", 96, 96))},
            "cameras: robot [a, wirst, statik], policy [static, wrist] "
            "(--rename_map.statik=static, --rename_map.wirst=wrist)",
        ),
        (
            {"cameras": (Camera("a", 96, 96), Camera("b", 96, 96))},
            "cameras: robot [a, b], policy [static, wrist] (--rename_map.OURS=THEIRS)",
        ),
        (
            {"cameras": ()},
            "cameras: robot [], policy [static, wrist] (--robot.cameras.static.type=opencv and so on)",
        ),
        (
            {"cameras": (STATIC, Camera("wrist", 480, 640))},
            "camera wrist: robot sends 640x480, policy takes 96x96 (export-onnx --image_size.wrist=640x480 takes "
            "it as it is, --resize=true squashes it by 1.33)",
        ),
        (
            {"cameras": (STATIC, Camera("wrist", 480, 480))},
            "camera wrist: robot sends 480x480, policy takes 96x96 (--resize=true fits it)",
        ),
        (
            {"extra_state": ()},
            "observation.environment_state: robot has none, policy takes 5 numbers "
            "(--extra_state.environment_state=URL)",
        ),
        (
            {"extra_state": (replace(ENVIRONMENT, dimension=7),)},
            "observation.environment_state: robot has 7, policy takes 5 numbers (--extra_state.environment_state=URL)",
        ),
        ({"fps": 25.0}, "fps: robot 25, policy 30 (--fps=30)"),
        ({"actions_per_chunk": 51}, "actions_per_chunk: robot 51, policy at most 50 (--actions_per_chunk=50)"),
        ({"digest": b"b" * 32}, "policy: robot started with 626262626262, server has 616161616161"),
    ],
)
def test_each_difference_is_one_clause_with_both_sides(change: dict[str, Any], sentence: str) -> None:
    assert differences(replace(ROBOT, **change), POLICY) == [sentence]


def test_all_differences_are_said_at_once() -> None:
    robot = Hello(
        joints=tuple(Joint(name, "radians") for name in NAMES),
        cameras=(replace(STATIC, width=1), replace(WRIST, width=1)),
        extra_state=(),
        fps=1.0,
        actions_per_chunk=100,
        digest=b"b" * 32,
        protocol_version=9,
    )
    said = "; ".join(differences(robot, POLICY))
    for word in ("protocol", *NAMES, "static", "wrist", "environment_state", "fps", "actions_per_chunk", "policy:"):
        assert word in said


def test_successor_that_takes_the_same_and_answers_alike_fits() -> None:
    other = replace(POLICY, digest=b"b" * 32, cameras=(WRIST, STATIC), chunk_size=20)
    assert successor_differences(POLICY, other, rows=20) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"joints": JOINTS[:2]}, "joints: robot [shoulder_pan.pos, shoulder_lift.pos, gripper.pos], policy ["),
        ({"fps": 25.0}, "fps: robot 30, policy 25 (--fps=25)"),
        ({"chunk_size": 49}, "actions_per_chunk: robot 50, policy at most 49"),
        ({"cameras": (STATIC,)}, "inputs: robot [observation.environment_state, static, wrist], policy ["),
        ({"extra_state": ()}, "inputs: robot [observation.environment_state, static, wrist], policy [static, wrist]"),
        ({"uses_task": True}, "inputs: robot ["),
    ],
)
def test_successor_that_takes_less_or_other_does_not_fit(change: dict[str, Any], sentence: str) -> None:
    (found,) = successor_differences(POLICY, replace(POLICY, digest=b"b" * 32, **change), rows=50)
    assert found.startswith(sentence)


@pytest.mark.parametrize("name", ["front", "front.left", "my cam", "a'b", "it=is"])
def test_every_remedy_is_understood_by_its_own_parser(name: str) -> None:
    """Each flag in brackets, as a shell would split it, is taken by `edge-runtime start` or `export-onnx`."""
    theirs = replace(POLICY, type="smolvla", cameras=(STATIC, Camera(name, 96, 96)))
    robots = [
        (STATIC,),
        (STATIC, Camera("other", 96, 96)),
        (STATIC, Camera(name, 480, 640)),
        (Camera("a", 96, 96), Camera("b", 96, 96)),
    ]
    tried = 0
    for cameras in robots:
        for clause in differences(replace(ROBOT, cameras=cameras), theirs):
            exported, remedy = False, clause[clause.index("(--") if "(--" in clause else clause.index("(export") :]
            for word in shlex.split(remedy[1:-1].replace("; ", " ").replace(", --", " --")):
                exported = exported or word == "export-onnx"
                if not word.startswith("--") or word == "--rename_map.OURS=THEIRS":
                    continue
                word = word.removesuffix(",")
                if word.startswith(("--cameras", "--image_size")):
                    assert exported
                    config = flags.parse(ExportConfig, [word], prog="")
                    assert config.cameras == ["static"] or list(config.sizes) == [name]
                else:
                    start = flags.parse(StartConfig, ["--robot.type=so101_follower", word], prog="")
                    assert name in {*start.robot.cameras, *start.rename_map.values()} or start.resize
                tried += 1
    assert tried >= 5


def test_a_camera_that_the_training_never_had_is_left_out_first() -> None:
    theirs = replace(POLICY, type="smolvla")
    assert differences(replace(ROBOT, cameras=(STATIC,)), theirs) == [
        "cameras: robot [static], policy [static, wrist] (export-onnx --cameras=static, if it was trained without the "
        "others; else --robot.cameras.wrist.type=opencv and so on)"
    ]
