"""Ranges that cross the encoder's end: followed through it, and given an offset that keeps it outside."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_runtime.tools.bringup.travel import GREATEST_OFFSET, MIDDLE, WIDEST, Travel, homing_offset

TURN = 4096


def reported(shaft: int, offset: int) -> int:
    """As a servo reports it, and as LeRobot's own issue tracker has seen it: single-turn positions wrap."""
    return (shaft - offset) % TURN


def recorded(shafts: list[int], offset: int) -> Travel:
    travel = Travel(reported(shafts[0], offset))
    for shaft in shafts:
        travel.follow(reported(shaft, offset))
    return travel


def sweep(*stops: int) -> list[int]:
    """A hand that goes from stop to stop, 100 ticks at a look."""
    shafts = [stops[0]]
    for stop in stops[1:]:
        shafts += [*range(shafts[-1], stop, 100 if stop > shafts[-1] else -100), stop]
    return shafts


@pytest.mark.parametrize(("shaft", "offset"), [(2047, 0), (1962, -85), (0, -2047), (4094, 2047), (4095, 2047)])
def test_the_middle_reports_the_middle(shaft: int, offset: int) -> None:
    assert homing_offset(shaft) == offset
    assert reported(shaft, offset) in (MIDDLE, MIDDLE + 1)  # a tick more at 4095: a servo's offset ends at 2047


def test_a_range_that_does_not_cross_is_lerobots_to_the_tick() -> None:
    travel = recorded(sweep(2047, 800, 3300), offset=0)
    assert travel.settle(0) == (0, 800, 3300)


def test_a_range_across_the_end_is_not_the_whole_turn() -> None:
    """4000..4095 and 0..200: recorded without a thought it would be 0..4095."""
    travel = recorded(sweep(4050, 4000, 4296), offset=0)
    assert (travel.low, travel.high) == (4000, 4296)
    offset, low, high = travel.settle(0)
    assert (low, high) == (1899, 2195)
    assert [reported(shaft, offset) for shaft in (4000, 200)] == [1899, 2195]


@given(st.integers(0, TURN - 1), st.integers(0, 3 * TURN), st.integers(0, WIDEST), st.integers(0, WIDEST))
def test_what_is_kept_reports_the_range_without_a_wrap(homed: int, start: int, below: int, above: int) -> None:
    """Wherever the joint was homed, wherever it stands and however its range lies."""
    below, above = below // 2, above // 2
    first = homing_offset(homed)
    travel = recorded(sweep(start, start - below, start + above), first)
    assert travel.span == below + above
    offset, low, high = travel.settle(first)
    assert abs(offset) <= GREATEST_OFFSET
    assert 0 <= low <= high < TURN
    assert [reported(shaft, offset) for shaft in (start - below, start + above)] == [low, high]


def test_more_than_a_turn_is_no_range() -> None:
    travel = recorded(sweep(2047, 2047 + WIDEST), offset=0)
    assert travel.is_range
    travel.follow(reported(2047 + WIDEST + 1, 0))
    assert not travel.is_range
