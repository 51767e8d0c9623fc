"""docs/python.md, held to its word: both programs run as they stand, but for addresses and folders."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.rig.program import Arm, Server

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"

pytestmark = [
    pytest.mark.skipif(not PAGE.exists(), reason="the page is in the repository, not in the wheel"),
    pytest.mark.long,  # a policy server of its own, and seconds of an arm at work
]


def programs() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def output(program: str, here: dict[str, str], folder: Path) -> str:
    for theirs, ours in here.items():
        assert theirs in program
        program = program.replace(theirs, ours)
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def server(tmp_path: Path) -> Server:
    with Server(tmp_path, "act_so101_pick_place") as server:
        yield server


def test_a_loop_of_ones_own_solves_the_task(server: Server, tmp_path: Path) -> None:
    program, _ = programs()
    assert len([line for line in program.splitlines() if line.strip()]) <= 20
    assert output(program, {"127.0.0.1:8080": server.address}, tmp_path) == "solved\n"


def test_a_whole_run_executes_actions_and_gives_its_report(server: Server, tmp_path: Path) -> None:
    _, program = programs()
    with Arm(tmp_path, "--cameras=[]") as arm:
        here = {
            "127.0.0.1:8080": server.address,
            "http://127.0.0.1:8090": arm.ready["http"],
            "/tmp/arm": arm.ready["port"],
            "/tmp/calibration": arm.ready["calibration_dir"],
            "duration_s=5": "duration_s=2",
            'id="virtual", ': 'id="virtual", bus_timeout_ms=100, ',  # the virtual servos share the machine
        }
        executed = re.match(r"(\d+) actions, \d+ ticks without one\n$", output(program, here, tmp_path))
        assert executed is not None
        assert int(executed[1]) > 10
        assert arm.torque() == {0}
