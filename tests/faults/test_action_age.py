"""An action is as old as the newest observation behind it, and is not executed when that is too long ago."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from edge_runtime._realtime import ActionRing, ActuatorLoop, PythonPort
from edge_runtime.errors import ConfigError

SECOND = 1_000_000_000


class Arm:
    """Goes where it is told."""

    def __init__(self) -> None:
        self.at = np.zeros(1)

    def read(self) -> Any:
        return self.at

    def write(self, goals: Any) -> None:
        self.at = goals


def loop_on(ring: ActionRing, arm: Arm) -> ActuatorLoop:
    loop = ActuatorLoop(ring, PythonPort(arm, 1), fps=10)
    loop.prime([0])
    return loop


def rows(*values: float) -> Any:
    return np.array(values, np.float32)[:, None]


def test_rows_beyond_their_age_are_left_and_the_arm_holds_where_it_is() -> None:
    ring, arm = ActionRing(20, 1, max_age_s=0.35), Arm()
    loop = loop_on(ring, arm)
    ring.merge(0, rows(1, 2, 3, 4, 5, 6), 0, seen_ns=0)
    where = []
    for tick in range(6):
        loop.tick(tick * SECOND // 10)
        where.append(float(arm.at[0]))
    assert where == [1, 2, 3, 4, 4, 4]
    assert (loop.record.level, ring.cursor, ring.too_old) == (0, 4, 2)  # level 0: the next observation must go
    assert loop.counters()["starved"] == 2
    assert loop.counters()["too_old"] == 2
    assert loop.action_age().summary().max == pytest.approx(0.3)
    assert [tick["action_age_ns"] for tick in loop.recent_ticks()] == [
        0,
        SECOND // 10,
        SECOND // 5,
        3 * SECOND // 10,
        0,
        0,
    ]


def test_a_chunk_that_comes_too_late_moves_nothing() -> None:
    """Its observation was made before the link went dead for ten seconds."""
    ring, arm = ActionRing(20, 1, max_age_s=2.0), Arm()
    loop = loop_on(ring, arm)
    ring.merge(0, rows(1, 2, 3), 0, seen_ns=0)
    loop.tick(10 * SECOND)
    assert (arm.at[0], ring.cursor) == (0, 0)
    ring.merge(0, rows(7, 8, 9), 0, seen_ns=10 * SECOND)
    loop.tick(10 * SECOND + SECOND // 10)
    assert arm.at[0] == 7  # not blended with what was too old


def test_an_old_chunk_does_not_drag_at_a_fresh_plan() -> None:
    ring, arm = ActionRing(20, 1, (0.5, 0.5), max_age_s=2.0), Arm()
    loop = loop_on(ring, arm)
    ring.merge(0, rows(4, 4), 0, seen_ns=10 * SECOND)
    ring.merge(0, rows(100, 100, 100), 0, seen_ns=SECOND)
    for tick in range(3):
        loop.tick(10 * SECOND + tick)
    assert arm.at[0] == 4
    assert loop.counters()["executed"] == 2


def test_a_blended_row_is_as_young_as_the_newer_observation() -> None:
    ring, arm = ActionRing(20, 1, (0.5, 0.5), max_age_s=1.0), Arm()
    loop = loop_on(ring, arm)
    ring.merge(0, rows(2), 0, seen_ns=0)
    ring.merge(0, rows(4), 0, seen_ns=SECOND // 2)
    loop.tick(SECOND + SECOND // 4)
    assert arm.at[0] == 3
    assert loop.action_age().summary().max == pytest.approx(0.75)


def test_where_old_rows_come_first_the_cursor_goes_to_the_young_ones() -> None:
    ring, arm = ActionRing(20, 1, max_age_s=1.0), Arm()
    loop = loop_on(ring, arm)
    ring.merge(0, rows(1, 2), 0, seen_ns=0)
    ring.merge(2, rows(3, 4), 0, seen_ns=2 * SECOND)
    loop.tick(2 * SECOND)
    assert (arm.at[0], ring.cursor, ring.jumps, ring.too_old) == (3, 3, 1, 2)


def test_without_a_limit_or_a_time_nothing_ages() -> None:
    for ring, seen in ((ActionRing(20, 1), {"seen_ns": 0}), (ActionRing(20, 1, max_age_s=0.1), {})):
        arm = Arm()
        loop = loop_on(ring, arm)
        ring.merge(0, rows(1), 0, **seen)
        loop.tick(1000 * SECOND)
        assert arm.at[0] == 1


@pytest.mark.parametrize("age", [0.0, -1.0, math.nan])
def test_an_age_that_cannot_be_is_refused(age: float) -> None:
    with pytest.raises(ConfigError, match="max_age_s"):
        ActionRing(20, 1, max_age_s=age)


def test_a_time_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="seen_ns: -1"):
        ActionRing(20, 1).merge(0, rows(1), 0, seen_ns=-1)
