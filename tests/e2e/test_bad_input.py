"""A few of the rows of tests/bad_input as a user meets them: processes, one last line, and an arm left alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import policy_server
from scripts.rig.program import WAIT_S, Arm, Server

pytestmark = pytest.mark.long

BUNDLES = Path(policy_server.__file__).parent / "bundles"


def start(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "edge_runtime", "start", *arguments],
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
        (["--config_path=/nowhere/at/all.yaml"], 78, ["/nowhere/at/all.yaml"]),
    ],
)
def test_a_wrong_command_line(arguments: list[str], code: int, parts: list[str]) -> None:
    refused(start(*arguments), code, *parts)


def test_a_missing_servo_is_named(arm: Arm) -> None:
    arm.post("/fault", {"fault": "silent", "ids": [3]})
    refused(start(*arm.flags), 74, "elbow_flex", "3")


def test_no_server(arm: Arm) -> None:
    answer = start(*arm.flags, "--server_address=127.0.0.1:9", "--give_up_after_s=0.3")
    refused(answer, 69, "127.0.0.1:9")


def test_a_server_with_another_policy(arm: Arm, tmp_path: Path) -> None:
    with Server(tmp_path, "act_so101_cubes") as cubes:
        refused(start(*arm.flags, f"--server_address={cubes.address}"), 76, "cameras", "static", "wrist")


def test_a_damaged_bundle(arm: Arm, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(BUNDLES / "act_so101_pick_place", bundle)
    graph = bundle / "policy.onnx"
    graph.write_bytes(graph.read_bytes()[:-1])
    refused(start(*arm.flags, f"--bundle={bundle}"), 65, f"bundle: {graph}: has ", " bytes, the manifest says ")


def test_a_bundle_that_is_not_there(arm: Arm) -> None:
    refused(
        start(*arm.flags, "--bundle=act_so101_pick_plac"), 65, "bundle: act_so101_pick_plac", "act_so101_pick_place?"
    )
