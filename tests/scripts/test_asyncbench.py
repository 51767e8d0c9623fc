"""AsyncBench says the same every time, compares like with like, and takes a method that is one small class."""

from __future__ import annotations

import math
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge_runtime.errors import ConfigError
from edge_runtime.wire.messages import Floats, Observation
from scripts.benches.asyncbench import grid, link, policy, reach
from scripts.benches.asyncbench.cell import Cell
from scripts.benches.asyncbench.evidence import weigh, wilson
from scripts.benches.asyncbench.method import METHODS, LatestOnly, Method, resolve
from scripts.benches.asyncbench.outcome import Outcome, Seams
from scripts.benches.asyncbench.policy import LoadedPolicy
from scripts.benches.asyncbench.results import Results
from scripts.benches.asyncbench.table import Row
from scripts.benches.asyncbench.trial import Trial
from scripts.benches.asyncbench.world import World

ROOT = Path(__file__).parents[2]
CELL = Cell("state", "still", 50, "constant-300", "latest_only", 0.5)
FLAGS = (
    *("--worlds=[still,moved]", "--links=[constant-300,lognormal-500]", "--methods=[sequential,linear_blend]"),
    *("--thresholds=[0.5,auto]", "--seeds=2"),
)
PICTURES = {"latency.png", "levels.png", "methods.png"}


@pytest.fixture(scope="module")
def state_policy() -> LoadedPolicy:
    return policy.load("state")


def bench(output: Path, *more: str) -> Mapping[str, bytes]:
    """The files of a run, by name."""
    command = [sys.executable, "-m", "scripts.benches.asyncbench", f"--output={output}", *FLAGS, *more]
    subprocess.run(command, check=True, capture_output=True, timeout=100)
    return {file.name: file.read_bytes() for file in output.iterdir() if file.suffix != ".jsonl"}


def outcome(seed: int, *, success: bool, ticks: int = 100, starved: int = 0) -> Outcome:
    return Outcome(seed, success, ticks, starved, 0, 4, 0, 0, 90, 0.5, 0, Seams(4, 20.0, 8.0, 9.0))


@pytest.mark.long
def test_a_grid_gives_the_same_bytes_again_on_any_number_of_processes_and_after_an_interruption(tmp_path: Path) -> None:
    whole = bench(tmp_path / "whole", "--processes=2")
    assert set(whole) == {"table.csv", "table.md", *PICTURES}
    assert whole["table.csv"].count(b"\n") == 1 + 12
    assert bench(tmp_path / "again", "--processes=1") == whole

    measured = (tmp_path / "whole" / "results.jsonl").read_text().splitlines(keepends=True)
    assert len(measured) == 24
    (tmp_path / "resumed").mkdir()
    (tmp_path / "resumed" / "results.jsonl").write_text("".join(measured[:2]) + measured[2][:50] + "\n")
    assert bench(tmp_path / "resumed", "--processes=1") == whole


def test_the_queue_is_seen_tick_by_tick(state_policy: LoadedPolicy) -> None:
    """At 300 ms: nine ticks of nothing, a whole chunk, and never again empty; half of a chunk is when to ask."""
    trial = Trial(state_policy, LatestOnly(), CELL, 0)
    seen = trial.run()
    levels = [level for level, _ in trial.queue]
    assert len(levels) == seen.ticks
    assert levels[:10] == [0] * 9 + [50]
    assert 0 not in levels[9:]
    assert {asks_at for _, asks_at in trial.queue} == {25}


def test_results_of_other_code_do_not_count(tmp_path: Path) -> None:
    Results(tmp_path).add(CELL, [outcome(0, success=True)])
    assert Results(tmp_path).of(CELL) == {0: outcome(0, success=True)}
    file = tmp_path / "results.jsonl"
    file.write_text(file.read_text().replace('"code": "', '"code": "not'))
    assert Results(tmp_path).of(CELL) == {}


@pytest.mark.parametrize("name", link.PROCESSES)
def test_the_weather_depends_on_the_seed_alone(name: str) -> None:
    first = link.round_trips(f"{name}-500", 3, 360)
    assert (first > 0).all()
    np.testing.assert_array_equal(first, link.round_trips(f"{name}-500", 3, 360))
    if name != "constant":
        assert (first != link.round_trips(f"{name}-500", 4, 360)).any()


def test_lognormal_means_what_it_says() -> None:
    drawn = np.concatenate([link.round_trips("lognormal-500", seed, 360) for seed in range(100)])
    assert drawn.mean() == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize("name", ["constant", "constant-", "constant-x", "constant--5", "lucky-300", "constant-99999"])
def test_links_that_are_none_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="links: "):
        link.round_trips(name, 0, 1)


def test_the_goal_moves_once_by_five_centimetres_whatever_the_method(state_policy: LoadedPolicy) -> None:
    def goals(still_for: int) -> set[tuple[float, float]]:
        world = World(state_policy.scene, "moved", 1, fixed_goal=False)
        found, target = {world.episode.goal}, world.read()
        for tick in range(still_for + 90):
            world.write(target + max(tick - still_for, 0) * 0.01)
            world.advance()
            found.add(world.episode.goal)
        return found

    assert goals(0) == goals(20)
    before, after = goals(0)
    assert math.dist(before, after) == pytest.approx(0.05)


def test_a_goal_that_is_fixed_does_not_move(state_policy: LoadedPolicy) -> None:
    with pytest.raises(ConfigError, match="moved is not for policy=images"):
        World(state_policy.scene, "moved", 0, fixed_goal=True)


@pytest.mark.parametrize("name", METHODS)
def test_each_method_runs_and_repeats_itself(name: str, state_policy: LoadedPolicy) -> None:
    cell = replace(CELL, method=name)
    first = Trial(state_policy, resolve(name)(), cell, 1).run()
    assert first == Trial(state_policy, resolve(name)(), cell, 1).run()
    assert first.inferences > 2
    assert (first.starved_after_first_chunk > 0) == (name == "sequential")
    assert first.starved - first.starved_after_first_chunk == 9  # the round trip of the first chunk, in ticks


def test_a_linear_blend_takes_the_seams_out(state_policy: LoadedPolicy) -> None:
    plain, blend = (
        Trial(state_policy, resolve(name)(), replace(CELL, method=name), 0).run().plan
        for name in ("latest_only", "linear_blend")
    )
    assert blend.seam_max < plain.seam_max / 2
    assert blend.seam_sum < plain.seam_sum / 2


@pytest.mark.parametrize(("threshold", "runs_dry"), [(0.16, True), (0.18, False), (0.9, False)])
def test_the_queue_runs_dry_exactly_below_the_safe_threshold(
    threshold: float, runs_dry: bool, state_policy: LoadedPolicy
) -> None:
    """g* = L * f / n = 9 of 50 rows."""
    seen = Trial(state_policy, LatestOnly(), replace(CELL, threshold=threshold), 0).run()
    assert (seen.starved_after_first_chunk > 0) == runs_dry


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.9])
def test_the_age_of_actions_is_what_the_formula_says(threshold: float, state_policy: LoadedPolicy) -> None:
    """L + T / 2 with T = max(L, (1 - g) * n / f); the first and the last chunk of an episode are not whole."""
    seen = Trial(state_policy, LatestOnly(), replace(CELL, threshold=threshold), 2).run()
    assert seen.age_s == pytest.approx(0.3 + max(0.3, (1 - threshold) * 50 / 30) / 2, abs=0.06)


def test_ages_lie_between_one_round_trip_and_that_and_the_time_between_two_chunks(state_policy: LoadedPolicy) -> None:
    """In [L, L + T]; the first chunk is there whole, so its last L * f rows come up to L later."""
    trial = Trial(state_policy, LatestOnly(), CELL, 2)
    trial.run()
    ages = trial._loop.action_age()
    longest_s = 0.3 + (1 - 0.5) * 50 / 30
    assert ages.percentile(0) == pytest.approx(0.3, rel=0.03)
    assert ages.n - ages.cumulative([longest_s])[0] <= 9
    assert ages.summary().max <= longest_s + 0.3


class Blind(Method):
    """Shows the policy an arm at zero, and merges nothing but the first three rows."""

    def see(self, observation: Observation) -> Observation:
        return replace(observation, state=np.zeros_like(observation.state))

    def receive(self, actions: Floats, observation: Observation, passed: int, executed: int) -> Floats:
        assert 0 <= executed <= passed == 3
        return actions[:3] if executed == 0 else actions[: executed + 1]


def test_a_method_changes_what_is_shown_and_what_is_merged(state_policy: LoadedPolicy) -> None:
    cell = replace(CELL, link="constant-100")
    plain, blind = (Trial(state_policy, kind(), cell, 0).run() for kind in (LatestOnly, Blind))
    assert blind.inferences > 2 * plain.inferences
    assert blind.aged < blind.ticks / 2


def test_methods_of_ones_own_are_found_by_name() -> None:
    assert resolve("tests.scripts.test_asyncbench:Blind").__name__ == "Blind"
    for name, reason in {
        "linear": "none of sequential",
        "nowhere:Mine": "No module named 'nowhere'",
        "tests.scripts.test_asyncbench:CELL": "not a subclass",
    }.items():
        with pytest.raises(ConfigError, match=reason):
            resolve(name)


def test_the_method_on_the_page_works(state_policy: LoadedPolicy) -> None:
    page = (ROOT / "docs" / "asyncbench.md").read_text()
    block = page.partition("# mine.py\n")[2].partition("    python ")[0]
    names: dict[str, type[Method]] = {}
    exec(textwrap.dedent(block), names)
    assert Trial(state_policy, names["KeepTheGripper"](), CELL, 0).run().inferences > 2


def test_every_cell_of_the_default_grid_comes_once_and_has_a_sequential_one_beside_it() -> None:
    cells = grid.default("state")
    assert len(cells) == len(set(cells))
    assert {cell.sequential for cell in cells} <= set(cells)


def test_intervals_are_wilsons() -> None:
    """Brown, Cai and DasGupta (2001): for 0 of n the upper end is z² / (n + z²)."""
    assert wilson(0, 10) == pytest.approx((0.0, 1.96**2 / (10 + 1.96**2)), abs=1e-4)
    assert wilson(35, 40) == pytest.approx((0.7389, 0.9454), abs=1e-4)


def test_evidence_pairs_the_seeds() -> None:
    sequential = {seed: outcome(seed, success=seed != 9, ticks=150, starved=15) for seed in range(10)}
    faster = {seed: outcome(seed, success=seed < 4, ticks=100, starved=15) for seed in range(10)}
    seen = weigh(faster, sequential)
    assert (seen.seeds, seen.solved) == (10, 4)
    assert seen.p_value == pytest.approx(2 * 0.5**5)  # five lost, none won
    assert seen.speed_up == pytest.approx(1.5)
    assert seen.speed_up_moving == pytest.approx(135 / 85)
    assert seen.seam_mean == pytest.approx(5.0)
    assert math.isnan(weigh(faster, {}).p_value)


def test_what_is_to_be_reached_is_said_of_the_cells_that_were_run() -> None:
    cell = replace(CELL, method="linear_blend", threshold="auto")
    seen = weigh({0: outcome(0, success=True)}, {})
    rows = [Row(cell, seen), Row(cell.with_method("latest_only"), replace(seen, seam_max=20.0))]
    assert reach.lines(rows) == [
        "Reach: linear_blend at constant-300 ms, g = auto, still goal: largest step at a seam 0.40 of latest_only's "
        "(reach 0.5): met",
        "Reach: linear_blend: the limit of acceleration acts in 0.000% of the ticks at most (reach 0.1%): met",
    ]
