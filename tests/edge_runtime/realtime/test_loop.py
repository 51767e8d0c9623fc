"""The loop on a clock of the test's own against a plain reference; its threads, faults and limits."""

from __future__ import annotations

import ctypes
import math
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_runtime import timing
from edge_runtime._realtime import ActionRing, ActuatorLoop, LinearBlend, PythonPort, bucket
from edge_runtime.errors import ActuatorFault, ConfigError, FollowingFault

JOINTS = 2
SECOND = 1_000_000_000


class Arm:
    """A robot that goes where it is told at once, or stays where `stuck` holds it, and remembers its goals."""

    def __init__(self, at: Sequence[float] = (0, 0), stuck: bool = False) -> None:
        self.at = np.array(at, np.float64)
        self.stuck = stuck
        self.goals: list[list[float]] = []

    def read(self) -> npt.NDArray[np.float64]:
        return self.at

    def write(self, goals: npt.NDArray[np.float64]) -> None:
        self.goals.append(goals.tolist())
        if not self.stuck:
            self.at = goals


def loop_of(arm: Any, ring: ActionRing | None = None, *, at: Sequence[float] = (0, 0), **settings: Any) -> ActuatorLoop:
    ring = ring or ActionRing(100, JOINTS, (0, 1))
    loop = ActuatorLoop(ring, PythonPort(arm, ring.joints), **({"fps": 10} | settings))
    loop.prime(at)
    return loop


def ticks(loop: ActuatorLoop, count: int, period_ns: int = SECOND // 10) -> None:
    for tick in range(count):
        loop.tick(tick * period_ns)


@contextmanager
def running(loop: ActuatorLoop) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        yield thread
    finally:
        loop.stop()
        thread.join()


def chunk(*rows: Sequence[float]) -> npt.NDArray[np.float32]:
    return np.array(rows, np.float32)


# -- what is executed -----------------------------------------------------------------------------------------------

VALUES = st.lists(st.floats(-300, 300, width=32), min_size=JOINTS, max_size=JOINTS)


@given(
    rows=st.lists(VALUES, min_size=1, max_size=6),
    substeps=st.integers(1, 5),
    start=VALUES,
    max_speed=st.sampled_from([0.0, 50.0, 900.0]),
    acceleration=st.sampled_from([None, [300.0, 9000.0]]),
    relative=st.sampled_from([None, [5.0, 200.0]]),
    limits=st.sampled_from([None, ([-100.0, -20.0], [100.0, 30.0])]),
)
def test_goals_are_those_of_ten_lines_of_numpy(
    rows: list[list[float]],
    substeps: int,
    start: list[float],
    max_speed: float,
    acceleration: list[float] | None,
    relative: list[float] | None,
    limits: tuple[list[float], list[float]] | None,
) -> None:
    ring, arm = ActionRing(100, JOINTS, (0, 1)), Arm(start, stuck=True)
    lower, upper = limits or (None, None)
    loop = loop_of(
        arm,
        ring,
        at=start,
        substeps=substeps,
        max_speed=max_speed,
        max_acceleration=acceleration,
        max_relative_target=relative,
        lower=lower,
        upper=upper,
    )
    ring.merge(0, np.array(rows, np.float32), 0)
    ticks(loop, len(rows) * substeps)

    goal, present, expected, step = np.array(start), np.array(start), [], np.zeros(JOINTS)
    low, high = limits or ([-math.inf] * JOINTS, [math.inf] * JOINTS)
    fastest = max_speed / (10 * substeps) if max_speed else math.inf
    gain = np.array(acceleration or [math.inf] * JOINTS) / (10 * substeps) ** 2
    reach = np.array(relative or [math.inf] * JOINTS)
    for action in np.array(rows, np.float64):
        before = goal
        for sub in range(substeps):
            goal_before = goal
            goal = action if sub + 1 == substeps else before + (sub + 1) / substeps * (action - before)
            goal = np.clip(goal, low, high)
            goal = np.clip(goal, present - reach, present + reach)
            goal = np.clip(goal, goal_before - fastest, goal_before + fastest)
            goal = np.clip(goal, goal_before + np.minimum(step, 0) - gain, goal_before + np.maximum(step, 0) + gain)
            goal = np.clip(goal, np.minimum(low, goal_before), np.maximum(high, goal_before))
            step = goal - goal_before
            expected.append(goal.tolist())
    assert arm.goals == expected


def test_interpolation_is_continuous_over_a_merge_and_ends_on_the_action() -> None:
    ring, arm = ActionRing(100, JOINTS, (0, 1)), Arm()
    loop = loop_of(arm, ring, substeps=4)
    ring.merge(0, chunk([10, 0], [20, 0], [30, 0]), 0)
    ticks(loop, 6)
    ring.merge(0, chunk([-9, 0], [-9, 0], [10, 0]), 0)  # in the middle of timestep 1: takes effect with timestep 2
    ticks(loop, 6)
    assert [goal[0] for goal in arm.goals] == [2.5, 5, 7.5, 10, 12.5, 15, 17.5, 20, 17.5, 15, 12.5, 10]


def test_without_a_row_the_last_goal_is_held_and_the_cursor_stands_still() -> None:
    ring, arm = ActionRing(100, JOINTS), Arm()
    loop = loop_of(arm, ring, at=(3, 4))
    ticks(loop, 2)
    ring.merge(0, chunk([5, 6]), 0)
    ticks(loop, 3)
    assert arm.goals == [[3, 4], [3, 4], [5, 6], [5, 6], [5, 6]]
    assert (loop.counters()["starved"], loop.counters()["executed"], ring.cursor) == (4, 1, 1)


def test_a_goal_that_is_held_is_not_clamped() -> None:
    """An arm that starts outside its range moves only when a policy asks for it, and then by steps."""
    ring, arm = ActionRing(100, JOINTS), Arm((120, 0))
    loop = loop_of(arm, ring, at=(120, 0), lower=[-100, -100], upper=[100, 100], max_speed=50)
    ticks(loop, 1)
    ring.merge(0, chunk([150, 0], [150, 0], [150, 0], [150, 0], [150, 0]), 0)
    ticks(loop, 5)
    assert [goal[0] for goal in arm.goals] == [120, 115, 110, 105, 100, 100]
    assert (loop.counters()["clamped_range"], loop.counters()["clamped_speed"]) == (5, 3)


def test_a_hole_holds_for_its_timestep_and_the_cursor_goes_on() -> None:
    ring, arm = ActionRing(100, JOINTS), Arm()
    loop = loop_of(arm, ring, substeps=2)
    ring.merge(0, chunk([2, 2], [math.nan, 7], [4, 4]), 0)
    ticks(loop, 6)
    assert [goal[0] for goal in arm.goals] == [1, 2, 2, 2, 3, 4]
    assert [loop.counters()[name] for name in ("holes", "held_nonfinite", "starved", "executed")] == [1, 2, 0, 2]
    assert ring.cursor == 3


def test_a_chunk_after_a_stall_is_blended_with_the_goal_that_is_held() -> None:
    """Also where a limit keeps the goal behind the action; and the first chunk with where the arm is."""
    ring, arm = ActionRing(100, JOINTS, LinearBlend(4)), Arm((-10, 0))
    loop = loop_of(arm, ring, at=(-10, 0), max_speed=200)
    ticks(loop, 2)
    ring.merge(0, np.full((5, JOINTS), 40, np.float32), 0)
    ticks(loop, 6)
    assert [goal[0] for goal in arm.goals[2:]] == [0, 10, 20, 30, 40, 40]
    ring.merge(5, np.full((1, JOINTS), 999, np.float32), 0)
    ticks(loop, 2)
    assert arm.goals[-1][0] == 60
    ring.merge(6, np.full((6, JOINTS), -40, np.float32), 0)
    ticks(loop, 5)
    assert [goal[0] for goal in arm.goals[-5:]] == pytest.approx([40, 20, 0, -20, -40])


def test_a_first_action_far_away_goes_out_as_a_ramp() -> None:
    ring, arm = ActionRing(100, JOINTS), Arm()
    loop = loop_of(arm, ring, fps=30, max_speed=300)
    ring.merge(0, np.full((20, JOINTS), 1000, np.float32), 0)
    ticks(loop, 20)
    steps = np.diff([0.0] + [goal[0] for goal in arm.goals])
    np.testing.assert_allclose(steps, 10)


def test_no_seam_is_a_jump() -> None:
    """A chunk begins one round trip behind what the arm was told, and another idea of where to go comes with it."""
    ring, arm = ActionRing(100, JOINTS), Arm()
    loop = loop_of(arm, ring, fps=30, max_speed=120)
    path = np.arange(50, dtype=np.float32) * 3
    for first in range(0, 150, 12):
        ring.merge(first, np.repeat((path + 3 * first - 40 * (first % 24 > 0))[:, None], JOINTS, axis=1), 0)
        ticks(loop, 12)
    steps = np.abs(np.diff([goal[0] for goal in arm.goals]))
    assert len(steps) == 155
    assert steps.max() <= 120 / 30 * (1 + 1e-9)
    assert loop.counters()["clamped_speed"] > 0


def test_the_speed_limit_is_per_second_whatever_the_rate() -> None:
    for substeps in (1, 2, 5):
        ring, arm = ActionRing(100, JOINTS), Arm()
        ring.merge(0, np.full((10, JOINTS), 1000, np.float32), 0)
        ticks(loop_of(arm, ring, max_speed=100, substeps=substeps), 10 * substeps)
        assert arm.goals[-1][0] == pytest.approx(100)


def test_max_relative_target_is_measured_from_the_present_position() -> None:
    ring, arm = ActionRing(100, JOINTS), Arm((10, 10), stuck=True)
    loop = loop_of(arm, ring, at=(10, 10), max_relative_target=[5, math.inf])
    ring.merge(0, chunk([0, 0], [30, 30], [12, 12]), 0)
    ticks(loop, 3)
    assert arm.goals == [[5, 0], [15, 30], [12, 12]]
    assert loop.counters()["clamped_relative"] == 2


def test_no_reading_takes_a_goal_out_of_the_range_or_past_the_speed() -> None:
    """With max_relative_target a damaged reading of 200 once made it 195."""
    ring, arm = ActionRing(100, JOINTS), Arm(stuck=True)
    loop = loop_of(arm, ring, lower=[-100] * 2, upper=[100] * 2, max_speed=100, max_relative_target=[5, 5])
    ring.merge(0, np.full((40, JOINTS), 90, np.float32), 0)
    for tick in range(40):
        arm.at = np.array([200.0, -200.0]) if tick % 3 == 1 else np.zeros(2)
        loop.tick(tick)
    goals = np.array([[0, 0], *arm.goals])
    assert np.abs(goals).max() <= 100
    assert np.abs(np.diff(goals, axis=0)).max() <= 10


def test_a_goal_that_began_outside_its_range_only_moves_inwards_whatever_is_read_or_asked() -> None:
    ring, arm = ActionRing(100, JOINTS), Arm((150, -150), stuck=True)
    limits = {"lower": [-100] * 2, "upper": [100] * 2, "max_speed": 50, "max_relative_target": [9, 9]}
    loop = loop_of(arm, ring, at=(150, -150), **limits)
    ring.merge(0, np.repeat(np.array([[300, -300], [0, 0]], np.float32), 8, axis=0), 0)
    for tick in range(16):
        arm.at = np.array([170.0, -170.0]) if tick % 2 else np.array([150.0, -150.0])
        loop.tick(tick)
    assert (np.diff([150] + [goal[0] for goal in arm.goals]) <= 0).all()
    assert (np.diff([-150] + [goal[1] for goal in arm.goals]) >= 0).all()
    assert arm.goals[-1] != [150, -150]


@pytest.mark.parametrize("substeps", [1, 4])
def test_a_goal_gains_speed_and_turns_back_slowly_and_stops_at_once(substeps: int) -> None:
    ring, arm = ActionRing(100, JOINTS), Arm()
    loop = loop_of(arm, ring, fps=10, substeps=substeps, max_acceleration=[100, math.inf])
    far = np.zeros((20, JOINTS), np.float32)
    far[:5], far[5:6], far[6:] = 50, math.nan, -50
    ring.merge(0, far, 0)
    ticks(loop, 20 * substeps)
    goals = np.array([[0, 0], *arm.goals])
    steps, gain = np.diff(goals[:, 0]), 100 / (10 * substeps) ** 2
    before = np.array([0, *steps[:-1]])
    same = steps * before >= 0
    assert (np.abs(steps) - np.where(same, np.abs(before), 0)).max() <= gain * (1 + 1e-9)
    assert steps[:substeps].tolist() == pytest.approx([gain * (tick + 1) for tick in range(substeps)])
    assert (steps[5 * substeps : 6 * substeps] == 0).all()  # a hole stops it
    assert steps[6 * substeps] == pytest.approx(-gain)  # from a standstill
    assert goals[substeps, 1] == 50  # the other joint has no limit
    assert loop.counters()["clamped_acceleration"] > 10


def test_dry_run_writes_nothing_and_shows_its_goals() -> None:
    ring, arm = ActionRing(100, JOINTS), Arm()
    loop = loop_of(arm, ring, dry_run=True)
    ring.merge(0, chunk([1, 2]), 0)
    ticks(loop, 1)
    assert arm.goals == []
    assert loop.record.goal.tolist() == [1, 2]


# -- what is told ---------------------------------------------------------------------------------------------------


def test_a_record_shows_the_timestep_about_to_be_executed_once_per_timestep() -> None:
    ring, arm = ActionRing(100, JOINTS), Arm((7, 8), stuck=True)
    loop = loop_of(arm, ring, substeps=3)
    assert (loop.record.sequence, loop.record.level) == (0, 0)
    ring.merge(0, chunk([1, 1], [2, 2], [3, 3]), 0)
    ring.merge(1, chunk([5, 5]), 0)
    seen = []
    for tick in range(12):
        loop.tick(tick)
        record = loop.record
        seen.append((record.sequence, record.time_ns, record.timestep, record.level, record.merges))
    assert seen[::3] == [(1, 0, 0, 3, 2), (2, 3, 1, 2, 2), (3, 6, 2, 1, 2), (4, 9, 3, 0, 2)]
    assert seen[1::3] == seen[2::3] == seen[::3]
    assert record.positions.dtype == record.goal.dtype == np.float32
    assert (record.positions.tolist(), record.ages_s.tolist(), record.goal.tolist()) == ([7, 8], [0, 0], [3, 3])


def test_a_record_after_a_jump_shows_where_the_cursor_went() -> None:
    ring = ActionRing(100, JOINTS)
    loop = loop_of(Arm(), ring)
    ring.merge(5, chunk([1, 1]), 0)
    ticks(loop, 1)
    assert (loop.record.timestep, loop.record.level, loop.counters()["jumps"]) == (5, 1, 1)


def test_a_record_does_not_change_once_taken() -> None:
    arm = Arm((1, 1), stuck=True)
    loop = loop_of(arm)
    ticks(loop, 1)
    first = loop.record
    arm.at = np.array([2.0, 2.0])
    ticks(loop, 3)
    assert (first.positions.tolist(), loop.record.positions.tolist()) == ([1, 1], [2, 2])


def test_recent_ticks_are_the_last_ones_oldest_first() -> None:
    ring = ActionRing(100, JOINTS)
    loop = loop_of(Arm(), ring, history=4)
    ring.merge(0, chunk([1, 1], [math.nan, 0], [3, 3]), 0)
    assert loop.recent_ticks() == []
    ticks(loop, 2)
    assert [tick["outcome"] for tick in loop.recent_ticks()] == ["picked", "hole"]
    for time_ns in range(100, 140):
        loop.tick(time_ns)
    last = loop.recent_ticks()
    assert [tick["time_ns"] for tick in last] == [136, 137, 138, 139]
    assert last[-1] | {"read_ns": 0, "write_ns": 0} == {
        "time_ns": 139,
        "timestep": 3,
        "outcome": "starved",
        "answered": 2,
        "late_ns": 0,
        "read_ns": 0,
        "write_ns": 0,
        "action_age_ns": 0,
        "positions": [3, 3],
        "goal": [3, 3],
    }
    assert last[-1]["read_ns"] > 0


@given(st.integers(-5, 2**50))
def test_the_loop_counts_in_the_buckets_of_timing(ns: int) -> None:
    assert bucket(ns) == timing.bucket(ns)


# -- is it where it was sent ----------------------------------------------------------------------------------------


def obstructed(following_error: str, **settings: Any) -> tuple[ActuatorLoop, ActionRing, Arm]:
    """Joint 0 is sent to 90 and stays at 0; joint 1 may be anywhere."""
    ring, arm = ActionRing(100, JOINTS, (0, 1)), Arm(stuck=True)
    limits = {"following_limit": [20, math.inf], "following_s": 0.4, "names": ["pan", "grip"]} | settings
    loop = loop_of(arm, ring, following_error=following_error, **limits)
    ring.merge(0, np.full((50, JOINTS), 90, np.float32), 0)
    return loop, ring, arm


def test_a_joint_far_from_its_goal_for_so_long_is_counted_and_named() -> None:
    loop, ring, arm = obstructed("warn")
    for tick in range(20):
        arm.at = np.array([90.0, 0.0]) if tick == 10 else np.zeros(2)
        loop.tick(tick * SECOND // 10)
        assert loop.behind == ((0,) if 5 <= tick < 10 or tick >= 15 else ())
    assert loop.counters()["following_error"] == 10
    assert ring.cursor == 20


def test_with_hold_the_plan_waits_until_the_joint_is_where_it_was_sent() -> None:
    loop, ring, arm = obstructed("hold")
    ticks(loop, 10)
    assert (ring.cursor, loop.record.outcome, loop.record.level) == (5, "blocked", 45)
    assert len(arm.goals) == 10
    assert arm.goals[-1] == [90, 90]  # it is still told so
    arm.at = np.array([89.0, 0.0])
    for tick in range(10, 13):
        loop.tick(tick * SECOND // 10)
    assert (ring.cursor, loop.record.outcome) == (8, "picked")


def test_with_stop_it_is_a_fault_that_names_joint_and_distance() -> None:
    loop, _, arm = obstructed("stop")
    with pytest.raises(FollowingFault, match=r"following error: pan is 90.0 from its goal for 0.4 s"):
        ticks(loop, 20)
    assert len(arm.goals) == 5
    loop.prime([0, 0])
    loop.tick(SECOND)
    assert loop.behind == ()


def test_a_joint_that_is_on_its_way_paused_or_driven_dry_has_no_following_error() -> None:
    for settings in ({"following_s": 10.0}, {"dry_run": True}):
        loop, _, _ = obstructed("stop", **settings)
        ticks(loop, 30)
        assert loop.counters()["following_error"] == 0
    loop, _, _ = obstructed("stop")
    loop.pause()
    ticks(loop, 30)
    assert loop.counters()["following_error"] == 0


# -- faults ---------------------------------------------------------------------------------------------------------


class Broken(Arm):
    """Raises, or gives nonsense, while `reading` or `writing` is set."""

    reading: BaseException | Any = None
    writing: BaseException | None = None

    def read(self) -> Any:
        if isinstance(self.reading, BaseException):
            raise self.reading
        return super().read() if self.reading is None else self.reading

    def write(self, goals: npt.NDArray[np.float64]) -> None:
        if self.writing is not None:
            raise self.writing
        super().write(goals)


@pytest.mark.parametrize("nonsense", [RuntimeError("no such joint"), [1.0], [1.0, math.nan], "here", None])
def test_a_read_that_fails_keeps_the_last_position_and_faults_after_so_many(nonsense: Any) -> None:
    arm = Broken((1, 2), stuck=True)
    loop = loop_of(arm, max_missed_replies=3)
    loop.tick(0)
    arm.reading = nonsense if nonsense is not None else RuntimeError("twice, then well")
    loop.tick(SECOND)
    loop.tick(2 * SECOND)
    assert loop.record.positions.tolist() == [1, 2]
    assert loop.record.ages_s.tolist() == [2, 2]
    assert loop.counters()["read_errors"] == 2
    if nonsense is None:
        arm.reading = None
    else:
        with pytest.raises(ActuatorFault, match=r"read\(\) failed 3 times in a row: \w+Error: ") as fault:
            loop.tick(3 * SECOND)
        assert [tick["outcome"] for tick in fault.value.ticks] == ["starved"] * 3 + ["failed"]
        assert len(arm.goals) == 3
        return
    loop.tick(3 * SECOND)
    assert loop.record.ages_s.tolist() == [0, 0]


def test_writes_that_fail_are_counted_and_a_fault_after_so_many_in_a_row() -> None:
    arm = Broken()
    loop = loop_of(arm, max_missed_replies=3)
    for failing in (True, True, False, True, True):
        arm.writing = OSError("no bus") if failing else None
        loop.tick(0)
    assert loop.counters()["write_errors"] == 4
    with pytest.raises(ActuatorFault, match=r"write\(\) failed 3 times in a row: OSError: no bus"):
        loop.tick(0)


def test_an_interrupt_inside_the_robot_is_not_swallowed() -> None:
    arm = Broken()
    arm.reading = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        loop_of(arm).tick(0)


def test_a_loop_that_was_not_primed_does_not_start() -> None:
    loop = ActuatorLoop(ActionRing(10, JOINTS), PythonPort(Arm(), JOINTS), fps=10)
    for start in (loop.run, lambda: loop.tick(0)):
        with pytest.raises(ActuatorFault, match="prime it"):
            start()
    for goal in ([0.0], [0.0, math.nan]):
        with pytest.raises(ConfigError, match="goal: "):
            loop.prime(goal)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fps": 0}, "fps: 0"),
        ({"substeps": 0}, "with 0 ticks"),
        ({"lower": [0]}, "lower: 1 values for 2 joints"),
        ({"lower": [0, 5], "upper": [1, 4]}, "lower: 5.0 of joint 1 is not below upper, 4.0"),
        ({"upper": [1, math.nan]}, "joint 1"),
        ({"max_speed": -1}, "max_speed: -1"),
        ({"max_speed": math.inf}, "max_speed: inf"),
        ({"max_relative_target": [1, 0]}, "max_relative_target: 0.0 of joint 1"),
        ({"max_acceleration": [1, 0]}, "max_acceleration: 0.0 of joint 1"),
        ({"following_error": "cry"}, "following_error: 'cry'"),
        ({"following_limit": [0, 1]}, "following_limit: 0.0 of joint 0"),
        ({"following_s": math.nan}, "following_s: nan"),
        ({"max_missed_replies": 0}, "max_missed_replies: 0"),
        ({"realtime": "yes"}, "realtime: 'yes'"),
        ({"priority": 100}, "priority: 100"),
        ({"history": 0}, "history: 0"),
        ({"names": ["one"]}, "names: 1 for 2 joints"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        loop_of(Arm(), **settings)


def test_a_port_with_other_joints_than_the_ring_is_refused() -> None:
    with pytest.raises(ConfigError, match="the port has 3, the ring 2"):
        ActuatorLoop(ActionRing(10, 2), PythonPort(Arm(), 3), fps=10)


# -- pause ----------------------------------------------------------------------------------------------------------


def test_while_paused_it_reads_and_neither_picks_nor_writes_nor_starves() -> None:
    ring, arm = ActionRing(100, JOINTS), Arm(stuck=True)
    loop = loop_of(arm, ring, substeps=2)
    ring.merge(0, chunk([2, 2], [4, 4], [6, 6]), 0)
    ticks(loop, 3)  # in the middle of timestep 1
    loop.pause()
    arm.at = np.array([50.0, 60.0])
    ticks(loop, 4)
    assert len(arm.goals) == 3
    assert (loop.record.paused, loop.record.positions.tolist()) == (True, [50, 60])
    assert (ring.cursor, loop.counters()["starved"]) == (2, 0)
    loop.resume()
    ticks(loop, 2)
    assert arm.goals[3:] == [[28, 33], [6, 6]]  # from the present position to the next action


def test_a_resume_makes_no_goal_of_a_position_beyond_the_range() -> None:
    ring, arm = ActionRing(100, JOINTS), Arm(stuck=True)
    loop = loop_of(arm, ring, at=(0, -130), lower=[-100, -100], upper=[100, 100])
    loop.pause()
    arm.at = np.array([160.0, -150.0])
    ticks(loop, 2)
    loop.resume()
    ticks(loop, 2)
    assert arm.goals == [[100, -130], [100, -130]]  # the second began outside, and goes no further


def test_an_episode_begins_where_the_arm_is_with_timestep_0() -> None:
    ring, arm = ActionRing(100, JOINTS), Arm(stuck=True)
    loop = loop_of(arm, ring)
    ring.merge(0, chunk([1, 1], [2, 2], [3, 3]), 0)
    ticks(loop, 2)
    loop.pause()
    ticks(loop, 1)
    arm.at = np.array([9.0, 9.0])
    ring.open_session(1, clear=True, cursor=0)
    loop.resume()
    ticks(loop, 1)
    assert arm.goals == [[1, 1], [2, 2], [9, 9]]
    assert (loop.record.timestep, loop.record.level, loop.counters()["starved"]) == (0, 0, 1)


def test_pause_before_the_start_holds_from_the_first_tick() -> None:
    arm = Arm()
    loop = loop_of(arm, fps=1000)
    loop.pause()
    with running(loop):
        record = loop.wait(10, 10)
    assert record is not None
    assert record.paused
    assert arm.goals == []


def test_nothing_is_written_after_pause_has_returned() -> None:
    arm = Arm()
    loop = loop_of(arm, fps=1000, substeps=2)
    with running(loop):
        for _ in range(20):
            loop.resume()
            assert loop.wait(loop.record.sequence + 1, 10)
            loop.pause(10)
            assert loop.record.paused
            written = len(arm.goals)
            assert loop.wait(loop.record.sequence + 2, 10)
            assert len(arm.goals) == written
    assert written > 0


# -- run ------------------------------------------------------------------------------------------------------------


def test_stop_wakes_the_sleep_and_everyone_who_waits() -> None:
    loop = loop_of(Arm(), fps=0.001)  # the next tick is a quarter of an hour away
    waited: list[object] = []
    waiter = threading.Thread(target=lambda: waited.append(loop.wait(5, 3600)))
    with running(loop) as thread:
        assert loop.wait(0, 10)
        waiter.start()
        loop.stop()
        loop.stop()
        thread.join(10)
        waiter.join(10)
    assert not thread.is_alive()
    assert waited == [None]
    loop.run()  # stopped for good: returns at once
    assert loop.counters()["ticks"] == 1


def test_stop_wakes_who_waits_for_a_loop_that_never_ran() -> None:
    loop = loop_of(Arm())
    waited: list[object] = []
    waiter = threading.Thread(target=lambda: waited.append(loop.wait(0, 3600)))
    waiter.start()
    loop.stop()
    waiter.join(10)
    assert waited == [None]


def test_wait_returns_each_newer_record_and_none_in_time() -> None:
    loop = loop_of(Arm(), fps=500)
    assert loop.wait(0, 0.001) is None
    with running(loop):
        sequence = 0
        for _ in range(20):
            record = loop.wait(sequence, 10)
            assert record is not None
            assert record.sequence > sequence
            sequence = record.sequence


def test_a_fault_ends_run_and_wakes_everyone_who_waits() -> None:
    arm = Broken()
    loop = loop_of(arm, fps=1000, max_missed_replies=2, history=50)
    faults: list[ActuatorFault] = []

    def run() -> None:
        try:
            loop.run()
        except ActuatorFault as fault:
            faults.append(fault)

    thread = threading.Thread(target=run)
    thread.start()
    assert loop.wait(100, 10)
    arm.reading = RuntimeError("gone")
    assert loop.wait(10**9, 10) is None
    thread.join()
    assert "RuntimeError: gone" in str(faults[0])
    assert len(faults[0].ticks) == 50
    loop.pause()  # harmless on a loop that has ended


def test_whole_periods_that_were_missed_are_skipped_counted_and_laid_to_their_stage() -> None:
    class Slow(Arm):
        def read(self) -> npt.NDArray[np.float64]:
            if len(self.goals) == 5:
                select.select([], [], [], 0.1)  # a bus that hangs for twenty periods
            return super().read()

    ring = ActionRing(100, JOINTS)
    loop = loop_of(Slow(), ring, fps=200)
    ring.merge(0, np.zeros((20, JOINTS), np.float32), 0)
    with running(loop):
        assert loop.wait(12, 10)
    counters = loop.counters()
    assert counters["missed"] == sum(counters["missed_by_stage"].values())
    assert counters["missed_by_stage"]["bus"] >= 19
    recent = loop.recent_ticks()
    deadlines = [tick["time_ns"] - tick["late_ns"] for tick in recent]
    assert deadlines[6] - deadlines[5] >= SECOND // 10
    assert [tick["timestep"] for tick in recent[:12]] == list(range(12))  # missed ticks skip no action
    assert (deadlines[-1] - deadlines[0]) // (SECOND // 200) + 1 <= len(recent) + counters["missed"]
    assert len(set(deadlines)) == len(deadlines)
    assert loop.lateness().n == loop.bus_time().n == counters["ticks"]


def test_ticks_stay_on_the_grid_of_the_first_deadline() -> None:
    loop = loop_of(Arm(), fps=500)
    with running(loop):
        assert loop.wait(100, 10)
    grid = [(tick["time_ns"] - tick["late_ns"]) % 2_000_000 for tick in loop.recent_ticks()]
    assert len(set(grid)) == 1


def test_real_time_ends_with_run_and_the_outcome_is_told() -> None:
    policies: list[int] = []
    slacks: list[int] = []

    def slack_ns() -> int:
        return ctypes.CDLL(None).prctl(30, 0, 0, 0, 0)  # PR_GET_TIMERSLACK

    class Watched(Arm):
        def read(self) -> npt.NDArray[np.float64]:
            policies.append(os.sched_getscheduler(0))
            slacks.append(slack_ns())
            return super().read()

    loop = loop_of(Watched(), fps=1000, realtime="try", priority=7)
    assert loop.realtime_outcome == "not started"
    before, slack_before = os.sched_getscheduler(0), slack_ns()
    stopper = threading.Thread(target=lambda: (loop.wait(3, 10), loop.stop()))
    stopper.start()
    loop.run()
    stopper.join()
    assert os.sched_getscheduler(0) == before
    assert slack_ns() == slack_before
    if policies[0] == os.SCHED_FIFO:
        assert loop.realtime_outcome.startswith("SCHED_FIFO 7")
    else:
        assert loop.realtime_outcome.startswith("no SCHED_FIFO 7: needs CAP_SYS_NICE")
        assert slacks[0] == 1  # nanosecond: an ordinary thread's timers are late by 50 us


REFUSED = """
import os, resource
from tests.edge_runtime.realtime.test_loop import Arm, loop_of
resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))
if os.getuid() == 0:
    os.setuid(65534)
loop = loop_of(Arm(), realtime="{realtime}")
if "{call}" == "run":
    loop.stop()
try:
    loop.{call}()
finally:
    print(loop.realtime_outcome)
"""


@pytest.mark.parametrize("call", ["run", "check_realtime"])  # the latter comes before torque
@pytest.mark.parametrize(
    ("realtime", "ends"), [("try", "0"), ("enforce", "AccessError: realtime: enforce, but no SCHED_FIFO 80: needs")]
)
def test_where_real_time_is_refused_try_goes_on_and_enforce_raises(realtime: str, ends: str, call: str) -> None:
    code = REFUSED.format(realtime=realtime, call=call)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("no SCHED_FIFO 80: needs CAP_SYS_NICE")
    assert (done.returncode == 0) == (realtime == "try")
    assert realtime == "try" or ends in done.stderr
