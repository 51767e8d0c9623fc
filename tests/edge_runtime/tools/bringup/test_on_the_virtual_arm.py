"""`setup-motors`, then `calibrate`, to the end on `edge-runtime virtual-arm`, by the orders that its page gives."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edge_runtime.motors import calibration as calibrations
from edge_runtime.motors.calibration import JOINTS
from edge_runtime.virtual_arm.calibration import CALIBRATION
from tests.edge_runtime.tools.bringup.person import Person

ALL = [1, 2, 3, 4, 5, 6]
TURN = 600  # counts from the middle, more than `calibrate` asks for

Order = Callable[..., None]

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A virtual arm of its own; what it says when it is ready."""
    folder = tmp_path_factory.mktemp("arm")
    command = [sys.executable, "-m", "edge_runtime", "virtual-arm", "--http_port=0", "--cameras=[]"]
    command += ["--until_stdin_closes", f"--link={folder / 'port'}", f"--calibration_dir={folder / 'cal'}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())


@pytest.fixture
def order(arm: dict[str, Any]) -> Order:
    def give(fault: str, ids: list[int], **rest: Any) -> None:
        body = json.dumps({"fault": fault, "ids": ids, **rest}).encode()
        headers = {"Origin": arm["http"]}
        urllib.request.urlopen(urllib.request.Request(f"{arm['http']}/fault", body, headers), timeout=60).close()

    return give


def robot(arm: dict[str, Any]) -> list[str]:
    return ["--robot.type=so101_follower", f"--robot.port={arm['port']}", "--robot.bus_timeout_ms=100"]


def test_six_servos_from_the_box_one_at_a_time(arm: dict[str, Any], order: Order) -> None:
    order("factory", ALL)
    order("detach", ALL)
    with Person("setup-motors", *robot(arm)) as person:
        for number, joint in reversed(list(enumerate(JOINTS, start=1))):
            person.see(f"Connect the {joint}'s servo only, then press Enter")
            order("attach", [number])
            person.press()
            person.see(f"✓ {joint}: id {number}, " + ("as it was" if number == 1 else "was id 1"))
            order("detach", [number])
        person.see("chain all six")
        order("attach", ALL)
        person.press()
        person.see("✓ all six answer")
        assert person.leave() == 0


def test_its_joints_are_moved_by_hand_and_it_is_calibrated(arm: dict[str, Any], order: Order, tmp_path: Path) -> None:
    """By the scene's own arm: it takes its time, droops, and lies on the table where it is let go of."""
    middles = {entry.id: (entry.range_min + entry.range_max) // 2 for entry in CALIBRATION.values()}
    flags = [*robot(arm), "--robot.id=my_arm", f"--robot.calibration_dir={tmp_path}"]
    with Person("calibrate", *flags) as person:
        person.see("1. Move every joint to about the middle")
        for number, middle in middles.items():
            order("hand", [number], position=middle)
        person.press()
        person.see("Press Enter when the table shows all of them")
        for joint in ("gripper", "wrist_flex", "elbow_flex", "shoulder_lift", "shoulder_pan"):
            number = CALIBRATION[joint].id
            order("hand", [number], position=middles[number] - TURN)
            person.see(f"✓ {joint}")
            order("hand", [number], position=middles[number])
        person.press()
        person.see("wrote offsets and ranges into the servos")
        assert person.leave() == 0
    found = calibrations.load(tmp_path / "my_arm.json")
    assert [found[joint].id for joint in JOINTS] == ALL
    spans = {joint: found[joint].range_max - found[joint].range_min for joint in JOINTS if joint != "wrist_roll"}
    assert all(400 <= span <= 1000 for span in spans.values()), spans
