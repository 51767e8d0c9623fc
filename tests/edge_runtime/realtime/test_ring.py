"""The ring against a plain reference, and what no merge may do to it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_runtime import _realtime
from edge_runtime._realtime import AGGREGATE, HOLE, PICKED, STARVED, ActionRing, LinearBlend, TemporalEnsemble
from edge_runtime.errors import ConfigError
from scripts.rig import race

JOINTS = 3
Floats = npt.NDArray[np.float32]


def chunk(*rows: float) -> Floats:
    """A chunk whose rows hold one number each in every joint."""
    return np.repeat(np.array(rows, np.float32)[:, None], JOINTS, axis=1)


def drain(ring: ActionRing) -> dict[int, float | None]:
    """Execute everything: timestep -> the row's number, None for a hole."""
    out, executed = np.empty(ring.joints, np.float32), dict[int, float | None]()
    while (outcome := ring.pick(out)) != STARVED:
        executed[ring.cursor - 1] = None if outcome == HOLE else float(out[0])
    return executed


Pair = Callable[[int], tuple[np.float32, np.float32]]  # (keep, take) of the i-th row of a chunk


def pair_of(aggregate: tuple[float, float] | LinearBlend, i: int) -> tuple[np.float32, np.float32]:
    if isinstance(aggregate, LinearBlend):
        take = min((i + 1) / (aggregate.rows + 1), 1)
        aggregate = (1 - take, take)
    return np.float32(aggregate[0]), np.float32(aggregate[1])


class PlainRing:
    """What the ring does, in some lines of numpy; `led` rows of a chunk are blended also where nothing is planned."""

    def __init__(self, pair: Pair, led: int = 0) -> None:
        self.pair, self.led, self.cursor = pair, led, 0
        self.plan: dict[int, Floats] = {}
        self.held: Floats | None = None  # what the robot holds where nothing is planned

    def merge(self, first: int, rows: Floats) -> int:
        new = {first + i: row for i, row in enumerate(rows) if first + i >= self.cursor}
        known = {timestep: row for timestep, row in self.plan.items() if np.isfinite(row).all()}
        for i, (timestep, row) in enumerate(new.items()):
            before = max((each for each in known if each < timestep), default=None)
            held = self.held if before is None else known[before]
            old = known.get(timestep, held if i < self.led else None)
            if old is None:
                self.plan[timestep] = row
            elif np.isfinite(row).all():
                keep, take = self.pair(i)
                self.plan[timestep] = keep * old + take * row
            else:
                self.plan[timestep] = known.get(timestep, row)
        return len(new)

    def pick(self) -> Floats | None:
        self.plan = {timestep: row for timestep, row in self.plan.items() if timestep >= self.cursor}
        if not self.plan:
            return None
        timestep = min(self.plan)
        self.cursor = timestep + 1
        row = self.plan.pop(timestep)
        self.held = row if np.isfinite(row).all() else None
        return row


ROWS = st.lists(
    st.lists(st.floats(width=32) | st.floats(-200, 200, width=32), min_size=JOINTS, max_size=JOINTS),
    min_size=1,
    max_size=9,
)
STEPS = st.lists(st.tuples(st.integers(-6, 12), ROWS) | st.integers(1, 8), max_size=20)


@given(
    aggregate=st.sampled_from([*AGGREGATE.values(), LinearBlend(1), LinearBlend(3), LinearBlend(200)]),
    steps=STEPS,
    as_function=st.booleans(),
)
def test_the_ring_does_what_the_plain_one_does(
    aggregate: tuple[float, float] | LinearBlend, steps: list[int | tuple[int, list[list[float]]]], as_function: bool
) -> None:
    """A number stands for so many picks, those without a row included: the goal then held is told as by the loop."""

    def blend(old: Floats, new: Floats) -> Floats:
        assert isinstance(aggregate, tuple)
        return np.float32(aggregate[0]) * old + np.float32(aggregate[1]) * new

    as_function = as_function and isinstance(aggregate, tuple)
    ring = ActionRing(100, JOINTS, blend if as_function else aggregate)
    plain = PlainRing(lambda i: pair_of(aggregate, i), aggregate.rows if isinstance(aggregate, LinearBlend) else 0)
    out, goal = np.empty(JOINTS, np.float32), np.full(JOINTS, 7.5)
    with np.errstate(over="ignore", invalid="ignore"):
        for step in steps:
            if isinstance(step, tuple):
                offset, rows = step
                first, new = plain.cursor + offset, np.array(rows, np.float32)
                assert ring.merge(first, new, 0) == plain.merge(first, new)
                continue
            for _ in range(step):
                expected = plain.pick()
                outcome = ring.pick(out)
                if expected is None:
                    assert outcome == STARVED
                elif not np.isfinite(expected).all():
                    assert outcome == HOLE
                else:
                    assert outcome == PICKED
                    np.testing.assert_array_equal(out, expected)
                    goal = out.astype(np.float64)
                if outcome != PICKED:
                    ring.hold(goal)
                    plain.held = goal.astype(np.float32)
                assert (ring.cursor, ring.level) == (plain.cursor, len(plain.plan))


def test_aggregate_names_are_lerobots() -> None:
    """async_inference/configs.py, AGGREGATE_FUNCTIONS of LeRobot 0.6."""
    assert AGGREGATE == {
        "weighted_average": (0.3, 0.7),
        "latest_only": (0, 1),
        "average": (0.5, 0.5),
        "conservative": (0.7, 0.3),
    }


def test_rows_that_the_chunk_does_not_cover_stay() -> None:
    ring = ActionRing(20, JOINTS, (0, 1))
    ring.merge(0, chunk(0, 1, 2, 3, 4, 5), 0)
    assert ring.merge(2, chunk(20, 30), 0) == 2
    assert drain(ring) == {0: 0, 1: 1, 2: 20, 3: 30, 4: 4, 5: 5}


def test_a_timestep_already_executed_does_not_come_back() -> None:
    ring = ActionRing(20, JOINTS, (0, 1))
    ring.merge(0, chunk(0, 1, 2), 0)
    drain(ring)
    assert ring.merge(1, chunk(10, 20, 30, 40), 0) == 2
    assert ring.dropped_rows == 2
    assert drain(ring) == {3: 30, 4: 40}


def test_a_wholly_stale_chunk_leaves_the_plan_alone_and_is_counted() -> None:
    ring = ActionRing(20, JOINTS)
    ring.merge(0, chunk(0, 1, 2, 3), 0)
    out = np.empty(JOINTS, np.float32)
    for _ in range(3):
        ring.pick(out)
    assert ring.merge(0, chunk(9, 9, 9), 0) == 0
    assert (ring.stale_chunks, ring.merges, ring.level) == (1, 1, 1)
    assert drain(ring) == {3: 3}


def test_the_cursor_jumps_to_a_plan_that_starts_beyond_it_and_over_gaps() -> None:
    ring = ActionRing(20, JOINTS)
    ring.merge(5, chunk(5, 6), 0)
    ring.merge(9, chunk(9), 0)
    assert (ring.level, ring.jumps) == (3, 0)
    assert drain(ring) == {5: 5, 6: 6, 9: 9}
    assert ring.jumps == 2


def test_a_hole_is_neither_blended_nor_picked() -> None:
    ring = ActionRing(20, JOINTS, (0.5, 0.5))
    nan, inf = float("nan"), float("inf")
    first = chunk(0, nan, 2, inf)
    first[2, 1] = nan  # one joint makes the whole row a hole
    ring.merge(0, first, 0)
    ring.merge(0, chunk(nan, 1, 3, -inf), 0)
    assert drain(ring) == {0: 0, 1: 1, 2: 3, 3: None}
    assert (ring.holes, ring.cursor) == (1, 4)


def test_chunks_of_another_session_are_dropped_and_counted() -> None:
    ring = ActionRing(20, JOINTS)
    ring.open_session(7, clear=False)
    assert ring.merge(0, chunk(1), 6) == 0
    assert ring.merge(0, chunk(1), 7) == 1
    assert (ring.session, ring.foreign_chunks, ring.merges) == (7, 1, 1)


def test_a_reconnect_keeps_the_plan_and_the_cursor() -> None:
    ring = ActionRing(20, JOINTS)
    ring.merge(0, chunk(0, 1, 2), 0)
    ring.pick(np.empty(JOINTS, np.float32))
    ring.open_session(1, clear=False)
    assert (ring.level, ring.cursor) == (2, 1)
    assert drain(ring) == {1: 1, 2: 2}


def test_a_fault_empties_the_ring_and_the_cursor_goes_on() -> None:
    ring = ActionRing(20, JOINTS)
    ring.merge(0, chunk(0, 1, 2), 0)
    ring.pick(np.empty(JOINTS, np.float32))
    ring.open_session(1, clear=True)
    assert (ring.level, ring.cursor) == (0, 1)
    assert drain(ring) == {}


def test_an_episode_starts_at_timestep_0_even_before_the_reader_knows() -> None:
    ring = ActionRing(20, JOINTS, (0, 1))
    ring.merge(0, chunk(*range(10)), 0)
    drain(ring)
    ring.open_session(1, clear=True, cursor=0)
    assert (ring.cursor, ring.level) == (0, 0)
    assert ring.merge(0, chunk(100, 101), 1) == 2
    assert (ring.cursor, ring.level) == (0, 2)
    ring.open_session(2, clear=True, cursor=3)  # the reader has not even seen the one before
    assert ring.merge(2, chunk(202, 203), 2) == 1
    assert drain(ring) == {3: 203}
    assert ring.merge(0, chunk(0, 0, 0, 0), 2) == 0


def test_a_users_function_is_called_once_with_the_overlap_and_may_keep_the_arrays() -> None:
    calls: list[tuple[Floats, Floats]] = []

    def blend(old: Floats, new: Floats) -> Floats:
        calls.append((old, new))
        return new - old

    ring = ActionRing(20, JOINTS, blend)
    ring.merge(0, chunk(1, 2, float("nan")), 0)
    assert calls == []
    ring.merge(1, chunk(10, 20, 30), 0)
    ((old, new),) = calls
    assert old.dtype == new.dtype == np.float32
    np.testing.assert_array_equal(old, chunk(2, 20))  # where one side is a hole, the function sees the other twice
    np.testing.assert_array_equal(new, chunk(10, 20))
    old[:] = new[:] = 99
    assert drain(ring) == {0: 1, 1: 8, 2: 20, 3: 30}


@pytest.mark.parametrize("shape", [(1, JOINTS), (2, JOINTS + 1), (2 * JOINTS,)])
def test_a_users_function_that_returns_another_shape_is_refused_and_changes_nothing(shape: tuple[int, ...]) -> None:
    ring = ActionRing(20, JOINTS, lambda old, new: np.zeros(shape))
    ring.merge(0, chunk(1, 2), 0)
    with pytest.raises(ConfigError, match=r"returned shape .* for two of \(2, 3\)"):
        ring.merge(0, chunk(3, 4), 0)
    assert (ring.merges, drain(ring)) == (1, {0: 1, 1: 2})


def test_another_writer_waits_for_a_users_function() -> None:
    begun, goes_on, opened = threading.Event(), threading.Event(), threading.Event()

    def blend(old: Floats, new: Floats) -> Floats:
        begun.set()
        assert goes_on.wait(10)
        return new

    def open_another() -> None:
        ring.open_session(1, clear=True)
        opened.set()

    ring = ActionRing(20, JOINTS, blend)
    ring.merge(0, chunk(0, 1), 0)
    writers = [threading.Thread(target=ring.merge, args=(0, chunk(2, 3), 0)), threading.Thread(target=open_another)]
    writers[0].start()
    assert begun.wait(10)
    writers[1].start()
    assert not opened.wait(0.05)
    goes_on.set()
    for writer in writers:
        writer.join(10)
    assert (ring.merges, ring.session, ring.level) == (2, 1, 0)


def test_a_users_function_that_raises_changes_nothing() -> None:
    def blend(old: Floats, new: Floats) -> Floats:
        raise ZeroDivisionError("no weight left")

    ring = ActionRing(20, JOINTS, blend)
    ring.merge(0, chunk(1, 2), 0)
    with pytest.raises(ZeroDivisionError, match="no weight left"):
        ring.merge(1, chunk(3, 4), 0)
    assert ring.merge(5, chunk(5), 0) == 1  # and the lock is free
    assert drain(ring) == {0: 1, 1: 2, 5: 5}


@pytest.mark.parametrize("coeff", [0.01, 0.0, -0.5, 3.0])
def test_temporal_ensemble_is_the_weighted_mean_of_all_chunks(coeff: float) -> None:
    """ACT, algorithm 2: w_i = exp(-coeff * i), i = 0 the oldest that speaks of the timestep."""
    rng = np.random.default_rng(1)
    chunks = rng.normal(0, 50, (6, 6, JOINTS)).astype(np.float32)
    ring, out = ActionRing(20, JOINTS, TemporalEnsemble(coeff)), np.empty(JOINTS, np.float32)
    for timestep in range(6):
        ring.merge(timestep, chunks[timestep], 0)
        assert ring.pick(out) == PICKED
        heard = np.stack([chunks[i][timestep - i] for i in range(timestep + 1)]).astype(np.float64)
        weights = np.exp(-coeff * np.arange(len(heard)))
        np.testing.assert_allclose(out, weights @ heard / weights.sum(), atol=1e-4)


def test_a_linear_blend_is_one_jump_in_equal_parts() -> None:
    ring = ActionRing(20, JOINTS, LinearBlend(3))
    ring.merge(0, chunk(*[0.0] * 8), 0)
    ring.merge(2, chunk(*[8.0] * 8), 0)
    assert drain(ring) == {0: 0, 1: 0, 2: 2, 3: 4, 4: 6, 5: 8, 6: 8, 7: 8, 8: 8, 9: 8}


def test_a_linear_blend_goes_on_from_the_last_planned_row_where_the_plan_ends() -> None:
    ring = ActionRing(20, JOINTS, LinearBlend(3))
    ring.merge(0, chunk(0, 0, 4), 0)
    ring.merge(2, chunk(8, 8, 8, 8), 0)
    assert drain(ring) == {0: 0, 1: 0, 2: 5, 3: 6, 4: 7, 5: 8}


def test_a_chunk_that_comes_too_late_is_blended_with_the_goal_that_is_held() -> None:
    """And with the last row before the robot has told what it holds; the very first chunk with nothing."""
    ring = ActionRing(20, JOINTS, LinearBlend(3))
    ring.merge(0, chunk(0, 4), 0)
    assert drain(ring) == {0: 0, 1: 4}
    ring.merge(0, chunk(0, 0, 8, 8, 8, 8), 0)
    assert drain(ring) == {2: 5, 3: 6, 4: 7, 5: 8}
    ring.hold(np.full(JOINTS, -8.0))
    ring.merge(6, chunk(0, 0, 0, 0), 0)
    assert drain(ring) == {6: -6, 7: -4, 8: -2, 9: 0}
    ring.merge(12, chunk(8, 8), 0)  # what was held at timestep 6 is not held at 10
    assert drain(ring) == {12: 2, 13: 4}
    ring.open_session(1, clear=True, cursor=6)
    ring.merge(6, chunk(8), 1)  # nor is what was held in another episode
    assert drain(ring) == {6: 8}


def test_temporal_ensemble_counts_only_chunks_that_were_blended() -> None:
    ring = ActionRing(20, JOINTS, TemporalEnsemble(0.0))
    for value in (3.0, float("nan"), 6.0, 9.0):
        ring.merge(0, chunk(value), 0)
    assert drain(ring) == {0: pytest.approx(6.0)}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ActionRing(0, 6), "capacity: 0"),
        (lambda: ActionRing(50, 0), "joints: 0"),
        (lambda: ActionRing(50, 65), "joints: 65"),
        (lambda: ActionRing(50, 6, (1.0,)), "not a pair"),  # type: ignore[arg-type]
        (lambda: ActionRing(50, 6, (0.3, float("nan"))), "not finite"),
        (lambda: TemporalEnsemble(float("inf")), "temporal_ensemble_coeff: inf"),
        (lambda: LinearBlend(0), "rows: 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("rows", "first"),
    [
        (np.zeros((2, JOINTS + 1), np.float32), 0),
        (np.zeros((0, JOINTS), np.float32), 0),
        (np.zeros((21, JOINTS), np.float32), 0),
        (np.zeros((2, JOINTS), np.float64), 0),
        (np.zeros((2, JOINTS), ">f4"), 0),
        (np.zeros(JOINTS, np.float32), 0),
        (np.zeros((4, 2 * JOINTS), np.float32)[:, ::2], 0),
        (np.zeros((11, JOINTS), np.float32), 50),  # beside the ten that are planned
        (np.zeros((2, JOINTS), np.float32), 2**62),
    ],
)
def test_chunks_that_do_not_fit_are_refused_and_change_nothing(rows: Floats, first: int) -> None:
    ring = ActionRing(20, JOINTS)
    ring.merge(0, chunk(*range(10)), 0)
    with pytest.raises(ValueError):
        ring.merge(first, rows, 0)
    assert (ring.level, ring.merges) == (10, 1)


def test_a_chunk_may_be_read_only() -> None:
    ring = ActionRing(20, 2)
    assert ring.merge(0, np.frombuffer(b"\0" * 16, np.float32).reshape(2, 2), 0) == 2


@pytest.mark.parametrize(
    "aggregate", [(0.0, 1.0), (0.3, 0.7), race.LinearBlend(6), race.TemporalEnsemble(0.01), lambda old, new: new]
)
def test_no_row_is_torn_and_no_timestep_comes_twice_under_merges_from_another_thread(
    aggregate: tuple[float, float] | LinearBlend | TemporalEnsemble | Callable[[Floats, Floats], Floats],
) -> None:
    ring = race.ActionRing(200, 6, aggregate)
    exact = not isinstance(aggregate, race.LinearBlend)  # which leads over, from a row
    results: list[tuple[int, int, int]] = []
    reader = threading.Thread(target=lambda: results.append(race.race(ring, 50_000, exact)), daemon=True)
    starts = np.random.default_rng(0)
    reader.start()
    while reader.is_alive():
        first = ring.cursor + int(starts.integers(-60, 140))
        rows = (first + np.arange(50)) % 4096
        ring.merge(first, np.repeat(rows[:, None].astype(np.float32), 6, axis=1), 0)
    reader.join()
    ((_, torn, back),) = results
    assert (torn, back) == (0, 0)
    assert ring.cursor >= 50_000
    assert ring.stale_chunks > 0


def test_the_product_has_no_reader_that_races() -> None:
    """Also in `.ci/run`, where the wheel is what is imported."""
    assert not hasattr(_realtime, "race")
    assert [entry for entry in Path(_realtime.__file__).parent.rglob("*race*") if entry.suffix in (".so", ".pyx")] == []


def test_what_is_planned_is_copied_by_timestep_with_holes_where_nothing_is() -> None:
    ring = ActionRing(20, 1, (0.0, 1.0))
    ring.open_session(1, clear=True, cursor=0)
    assert ring.planned(0, 5).shape == (0, 1)
    ring.merge(2, np.array([[2], [3], [4]], np.float32), 1)
    ring.merge(6, np.array([[6], [7]], np.float32), 1)
    np.testing.assert_array_equal(ring.planned(3, 10)[:, 0], [3, 4, np.nan, 6, 7])
    np.testing.assert_array_equal(ring.planned(1, 3)[:, 0], [np.nan, 2, 3])
    assert ring.planned(8, 5).shape == (0, 1)
    with pytest.raises(ValueError, match="rows: -1 is less than 0"):
        ring.planned(0, -1)
