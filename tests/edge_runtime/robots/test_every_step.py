"""One request after another fails, on a virtual clock: whichever it is, the arm starts and stops without a blow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from edge_runtime.motors import stopping
from edge_runtime.motors.bus import Bus
from edge_runtime.robots import so_servos
from scripts.rig.steps import mutations, processes
from scripts.rig.steps.judge import judge
from scripts.rig.steps.life import Step, live
from scripts.rig.steps.sweep import steps


@pytest.mark.parametrize(("part", "policy"), [("start", "limp"), ("stop", "limp"), ("stop", "park")])
def test_whichever_request_fails_the_arm_does_not_move_by_itself(tmp_path: Path, part: Any, policy: Any) -> None:
    lived = 0
    for step in steps(tmp_path, [(part, policy)], every=0):
        assert not judge(live(tmp_path, step))
        lived += 1
    assert lived >= 20


@pytest.mark.long
@pytest.mark.parametrize("part", ["run", "supervisor", "first start"])
def test_whichever_requests_fail_while_the_arm_runs_it_keeps_its_limits(tmp_path: Path, part: Any) -> None:
    for step in steps(tmp_path, [(part, "limp")], every=0):
        assert not judge(live(tmp_path, step))


@pytest.mark.long
@pytest.mark.parametrize(
    "step",
    [
        Step("start", "limp", "killed", 30),
        Step("stop", "park", "terminated", 20),
        Step("run", "limp", "stopped", 60),
        Step("supervisor", "limp", "killed", 8),
    ],
    ids=str,
)
def test_whichever_process_a_signal_strikes_the_arm_is_let_go_of(tmp_path: Path, step: Step) -> None:
    account = processes.live(tmp_path, step)
    assert account is not None, "its transaction never came"
    assert not judge(account)
    assert account.torque == [0] * 6


# Each rule can fail: the product as it was before, put back.


def force_before_goal(patch: pytest.MonkeyPatch) -> None:
    """Limits and torque first, then where the arm is becomes its goal."""

    def energise(bus: Bus, limits: Mapping[int, int]) -> dict[int, int]:
        bus.sync_write("Torque_Limit", limits)
        bus.sync_write("Torque_Enable", dict.fromkeys(limits, 1))
        present = so_servos.steady_positions(bus, list(limits))
        bus.sync_write("Goal_Position", present)
        return present

    establish = Bus.establish
    patch.setattr(so_servos, "energise", energise)
    patch.setattr(Bus, "establish", lambda bus, name, values: name == "Goal_Position" or establish(bus, name, values))


def ramp_from_full_force(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(stopping, "_settle", lambda bus, torque_limits: dict(torque_limits))


def errors_end_the_ramp(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(stopping._Passing, "attempt", lambda passing, otherwise, act, *what: act(*what))


@pytest.mark.parametrize(
    ("mutate", "step", "said"),
    [
        (force_before_goal, Step("start", "limp", "none", 0), "is given force"),
        (ramp_from_full_force, Step("stop", "limp", "killed", 9), "is given force"),
        (errors_end_the_ramp, Step("supervisor", "limp", "write not taken", 9), "torque is still on"),
    ],
)
def test_what_was_wrong_once_is_seen(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mutate: Callable[[pytest.MonkeyPatch], None],
    step: Step,
    said: str,
) -> None:
    assert not judge(live(tmp_path, step))
    mutate(monkeypatch)
    violations = judge(live(tmp_path, step))
    assert any(said in violation for violation in violations), violations


LIVE_THROUGH = """
import sys
from pathlib import Path
from scripts.rig.steps.judge import judge
from scripts.rig.steps.life import Step, live
print(judge(live(Path(sys.argv[1]), Step("run", "limp", "lie", 31))))
"""


@pytest.mark.long
@pytest.mark.skipif(not (mutations.ROOT / "cython_ext").is_dir(), reason="the sources are in the repository")
def test_a_relative_clamp_that_comes_last_is_seen(tmp_path: Path) -> None:
    """It is compiled: a copy of the product is built with it."""
    assert not judge(live(tmp_path, Step("run", "limp", "lie", 31)))
    mutations.make("relative clamp last", tmp_path / "copy")
    done = mutations.run(tmp_path / "copy", "-c", LIVE_THROUGH, str(tmp_path))
    assert done.returncode == 0
    assert "makes a step of" in done.stdout


@pytest.mark.skipif(not (mutations.ROOT / "cython_ext").is_dir(), reason="the sources are in the repository")
@pytest.mark.parametrize("name", mutations.MUTATIONS)
def test_what_a_mutation_changes_is_there(name: str) -> None:
    for file, there, _ in mutations.MUTATIONS[name]:
        folder = "cython_ext" if file.endswith(".pxi") else Path(file).parent
        assert (mutations.ROOT / folder / Path(file).name).read_text().count(there) == 1
