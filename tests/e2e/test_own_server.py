"""One machine: the policy server that the runtime starts for itself, and what becomes of the run without it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from scripts.rig.program import Arm, Edge


def child_of(pid: int, module: str) -> int:
    """The process that `pid` started to run `module`."""
    children = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    (found,) = (child for child in children if module in Path(f"/proc/{child}/cmdline").read_text())
    return found


def test_a_server_of_our_own_that_is_killed_ends_the_run_and_stops_the_arm(arm: Arm, folder: Path) -> None:
    with Edge(folder, *arm.flags, "--bundle=act_so101_pick_place") as edge:
        edge.wait_for("-> running")
        assert "serving [act_so101_pick_place]" in edge.text
        assert "WARNING" not in edge.text  # it is waited for until it serves
        os.kill(child_of(edge.process.pid, "policy_server"), signal.SIGKILL)
        assert edge.wait() == 70, edge.text
        assert edge.lines[-1].endswith("bundle: the policy server for act_so101_pick_place was ended by signal 9")
    assert arm.torque() == {0}
