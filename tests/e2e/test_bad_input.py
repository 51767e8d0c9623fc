"""What a user can get wrong, each answered by one line, the right exit code and an arm left alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.programs import WAIT_S, Arm, Server

BUNDLES = Path(__file__).parents[2] / "policy_server" / "bundles"


def start(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "edge_runtime.cli", "start", *arguments],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        stdin=subprocess.DEVNULL,
    )


def refused(answer: subprocess.CompletedProcess[str], code: int, *parts: str) -> None:
    said = answer.stderr.strip().splitlines()
    assert answer.returncode == code, answer.stderr
    assert said[-1].startswith("edge-runtime: "), answer.stderr
    assert all(part in said[-1] for part in parts), said[-1]
    assert "Traceback" not in answer.stderr


@pytest.fixture(autouse=True)
def the_arm_is_left_alone(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever is wrong, no goal and no torque is written."""
    if "arm" not in request.fixturenames:
        yield
        return
    arm = request.getfixturevalue("arm")
    before_s = arm.last_write_s("Torque_Enable", "Goal_Position")
    yield
    arm.post("/fault", {"fault": "clear"})
    assert arm.last_write_s("Torque_Enable", "Goal_Position") == before_s


@pytest.mark.parametrize(
    ("arguments", "code", "parts"),
    [
        (["--robot.type=so101_follower", "--robot.prot=/dev/x"], 64, ["robot.prot", "robot.port"]),
        (["--robot.type=so101_follower", "--fps=fast"], 78, ["fps", "fast", "number"]),
        (["--robot.type=so10_follower"], 78, ["robot.type", "so10_follower", "so101_follower"]),
        (["--config_path=/nowhere/at/all.yaml"], 78, ["/nowhere/at/all.yaml"]),
        (["--robot.type=so101_follower", "--control_hz=45"], 78, ["control_hz", "45", "30"]),
        (
            ["--robot.type=so101_follower", "--aggregate_fn_name=weighted"],
            78,
            ["aggregate_fn_name", "weighted_average"],
        ),
        (["--robot.type=so101_follower", "--aggregate_fn_name=no_module:f"], 78, ["aggregate_fn_name", "no_module"]),
        (["--robot.type=so101_follower", "--episodes=3"], 78, ["episodes", "reset_url"]),
    ],
)
def test_a_wrong_command_line(arguments: list[str], code: int, parts: list[str]) -> None:
    refused(start(*arguments), code, *parts)


def test_an_unknown_key_in_the_file_is_named_with_the_nearest(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("robot:\n  type: so101_follower\n  prot: /dev/ttyACM0\n")
    refused(start(f"--config_path={config}"), 78, "prot", "port")


def test_a_port_that_is_not_there(arm: Arm) -> None:
    refused(start(*arm.flags, "--robot.port=/dev/ttyACM77"), 74, "/dev/ttyACM77", "is not there")


def test_a_port_that_is_a_file(arm: Arm, tmp_path: Path) -> None:
    file = tmp_path / "port"
    file.write_text("not a port")
    refused(start(*arm.flags, f"--robot.port={file}"), 74, str(file))


def test_a_port_on_which_nothing_answers(arm: Arm) -> None:
    master, slave = os.openpty()
    try:
        refused(start(*arm.flags, f"--robot.port={os.ttyname(slave)}"), 74, "12 V")
    finally:
        os.close(master)
        os.close(slave)


def test_a_missing_servo_is_named(arm: Arm) -> None:
    arm.post("/fault", {"fault": "silent", "ids": [3]})
    refused(start(*arm.flags), 74, "elbow_flex", "3")


def test_no_calibration_says_where_it_was_looked_for(arm: Arm, tmp_path: Path) -> None:
    refused(start(*arm.flags, f"--robot.calibration_dir={tmp_path}"), 78, str(tmp_path))


def test_another_calibration_names_joint_both_values_and_the_flag(arm: Arm, tmp_path: Path) -> None:
    calibration = json.loads((Path(arm.ready["calibration_dir"]) / "virtual.json").read_text())
    was = calibration["elbow_flex"]["range_max"]
    calibration["elbow_flex"]["range_max"] = was - 100
    (tmp_path / "virtual.json").write_text(json.dumps(calibration))
    answer = start(*arm.flags, f"--robot.calibration_dir={tmp_path}")
    refused(answer, 78, "elbow_flex", str(was), str(was - 100), "--robot.write_calibration=true")


def test_a_camera_that_is_not_there(arm: Arm) -> None:
    camera = {"front": {"type": "opencv", "index_or_path": "/dev/video77"}}
    refused(start(*arm.flags, f"--robot.cameras={json.dumps(camera)}"), 74, "front", "/dev/video77")


def test_no_server(arm: Arm) -> None:
    answer = start(*arm.flags, "--server_address=127.0.0.1:9", "--give_up_after_s=0.3")
    refused(answer, 69, "127.0.0.1:9")


def test_a_server_with_another_policy(arm: Arm, tmp_path: Path) -> None:
    with Server(tmp_path, "act_so101_cubes") as cubes:
        refused(start(*arm.flags, f"--server_address={cubes.address}"), 76, "cameras", "static", "wrist")


def test_a_model_that_the_server_does_not_have(arm: Arm, server: Server) -> None:
    answer = start(*arm.flags, f"--server_address={server.address}", "--model=act_so101_pick_plaice")
    refused(answer, 76, "act_so101_pick_plaice", "act_so101_pick_place")


def test_another_unit_is_refused_joint_by_joint(arm: Arm, server: Server) -> None:
    answer = start(*arm.flags, f"--server_address={server.address}", "--robot.use_degrees=false")
    refused(answer, 76, "shoulder_pan", "normalized", "degrees")


def test_a_damaged_bundle(arm: Arm, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(BUNDLES / "act_so101_pick_place", bundle)
    graph = bundle / "policy.onnx"
    graph.write_bytes(graph.read_bytes()[:-1])
    answer = start(*arm.flags, f"--bundle={bundle}")
    assert "policy.onnx" in answer.stderr
    refused(answer, 65, "bundle")
