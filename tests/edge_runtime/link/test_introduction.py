"""How a robot introduces itself: which policy, similarity in the joints' own unit, cameras by the policy's names."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from edge_runtime.cameras import Camera as Eye
from edge_runtime.cameras.synthetic import SyntheticCamera
from edge_runtime.config import NoRobotConfig, StartConfig, SyntheticCameraConfig
from edge_runtime.errors import ProtocolError
from edge_runtime.link.handshake import choose, introduce
from edge_runtime.robots import make_robot
from edge_runtime.runtime import Runtime
from edge_runtime.wire.messages import Camera, Joint, Policy, ServerDescription
from tests.edge_runtime.link.scripted_server import JOINTS, POLICY, ScriptedServer


def hello(policy: Policy = POLICY, views: dict[str, Eye] | None = None, **settings: Any) -> Any:
    robot = NoRobotConfig(joints={joint.name: joint.unit for joint in policy.joints})
    config = StartConfig(robot=robot, **settings)
    return introduce(config, policy, make_robot(robot), views or {}, {}, config.task)


def in_unit(unit: str) -> Policy:
    return replace(POLICY, joints=tuple(Joint(joint.name, unit) for joint in JOINTS))


@pytest.mark.parametrize(
    ("unit", "given", "tolerance"),
    [
        ("degrees", None, 1.0),
        ("radians", None, 0.0),
        ("normalized", None, 0.0),
        ("radians", 0.05, 0.05),
        ("degrees", 0, 0),
    ],
)
def test_similarity_has_the_joints_own_unit_and_is_off_where_nobody_chose_one(
    unit: str, given: float | None, tolerance: float, caplog: pytest.LogCaptureFixture
) -> None:
    """One degree is LeRobot's; one radian would make everything similar."""
    with caplog.at_level(logging.INFO):
        assert hello(in_unit(unit), similarity_tolerance=given).similarity_tolerance == tolerance
    said = f"moved by less than {tolerance:g} ({unit})" if tolerance else "nothing is skipped as similar"
    assert said in caplog.text


def test_the_first_policy_or_the_one_that_was_named() -> None:
    other = replace(POLICY, name="other")
    offer = ServerDescription(1, "1", (POLICY, other))
    assert choose(offer, "") is POLICY
    assert choose(offer, "other") is other
    with pytest.raises(ProtocolError, match="no 'third' \\(it offers scripted, other\\)"):
        choose(offer, "third")


def camera(width: int, height: int) -> SyntheticCamera:
    eye = SyntheticCamera("eye", SyntheticCameraConfig(width, height))
    eye.open()
    return eye


def test_an_extra_camera_is_told_once_and_not_announced(caplog: pytest.LogCaptureFixture) -> None:
    policy = replace(POLICY, cameras=(Camera("front", 48, 64),))
    said = hello(policy, {"front": camera(64, 48), "top": camera(64, 48)})
    assert [each.name for each in said.cameras] == ["front"]
    assert caplog.messages == ["camera top is not used by policy scripted"]


def test_resizing_that_changes_the_proportions_is_warned_of_with_the_factor(caplog: pytest.LogCaptureFixture) -> None:
    policy = replace(POLICY, cameras=(Camera("front", 48, 48), Camera("top", 48, 64)))
    hello(policy, {"front": camera(640, 480), "top": camera(640, 480)}, resize=True)
    said = "camera front is squashed by 1.33 (--resize=true); export-onnx --image_size keeps its proportions"
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [said]


def test_with_resize_the_policys_shape_is_announced() -> None:
    policy = replace(POLICY, cameras=(Camera("front", 48, 64),))
    assert hello(policy, {"front": camera(640, 480)}, resize=True).cameras == policy.cameras
    with pytest.raises(ProtocolError, match="camera front: robot sends 640x480, policy takes 64x48"):
        hello(policy, {"front": camera(640, 480)})


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    server = ScriptedServer(policy=replace(POLICY, cameras=(Camera("top", 48, 64),)))
    yield server
    server.kill()


def test_a_rename_map_mends_another_name(server: ScriptedServer) -> None:
    robot = NoRobotConfig(
        joints={joint.name: joint.unit for joint in JOINTS}, cameras={"front": SyntheticCameraConfig(64, 48)}
    )
    config = StartConfig(robot=robot, server_address=server.address, duration_s=0.3, status=False)
    with pytest.raises(ProtocolError, match=r"cameras: robot \[front\], policy \[top\] \(--rename_map\.front=top\)"):
        Runtime(config, tell=lambda account: None).run()
    Runtime(replace(config, rename_map={"front": "top"}), tell=lambda account: None).run()
    assert [each.name for each in server.hellos[0].cameras] == ["top"]


def test_a_policy_that_is_told_in_words_is_not_run_without_any() -> None:
    listening = replace(POLICY, uses_task=True)
    for task in ("", "  "):
        with pytest.raises(ProtocolError, match=r"task: robot has none.* \(--task=") as refusal:
            hello(listening, task=task)
        assert refusal.value.exit_code == 76
    hello(listening, task="pick up the cube")
    hello(POLICY, task="pick up the cube")
