"""Round trips put together from stages that several threads record, one observation in flight at a time."""

from __future__ import annotations

import pytest

from edge_runtime.timing import SERVER_STAGES
from edge_runtime.tools.profiler.stage_log import StageLog


def answer(log: StageLog, round_trip_s: float, stage_s: float = 0.01) -> None:
    """What the planner records when a chunk is merged."""
    log.record("round_trip", round_trip_s)
    log.record("merge", stage_s)
    for stage in SERVER_STAGES:
        log.record(stage, stage_s)


def test_parts_of_one_trip_and_what_is_left() -> None:
    log = StageLog()
    log.record("capture", 0.01)
    log.record("network", 0.02)
    log.record("encode", 0.01)
    answer(log, 0.2)
    (trip,) = log.trips
    assert trip.round_trip_s == 0.2
    assert sum(trip.parts_s.values()) + trip.other_s == pytest.approx(0.2)
    assert trip.other_s == pytest.approx(0.2 - 0.02 - 0.01 * (3 + len(SERVER_STAGES)))
    assert "actuate" not in trip.parts_s


def test_a_trip_without_a_ping_takes_the_last_ones() -> None:
    log = StageLog()
    for ping in (0.02, None):
        log.record("capture", 0.01)
        if ping:
            log.record("network", ping)
        log.record("encode", 0.01)
        answer(log, 0.2)
        log.record("actuate", 0.01)
    assert [trip.parts_s["network"] for trip in log.trips] == [0.02, 0.02]
    assert list(log.warm) == log.trips[1:]


def test_a_ping_slower_than_the_trip_takes_no_more_than_there_is() -> None:
    log = StageLog()
    log.record("capture", 0.01)
    log.record("network", 5.0)
    answer(log, 0.2)
    (trip,) = log.trips
    assert trip.parts_s["network"] == pytest.approx(0.2 - 0.01 * (2 + len(SERVER_STAGES)))
    assert trip.other_s == pytest.approx(0.0, abs=1e-9)


def test_a_skipped_or_lost_observation_leaves_nothing_behind() -> None:
    log = StageLog()
    log.record("capture", 5.0)
    log.record("encode", 5.0)
    log.record("capture", 0.01)
    log.record("encode", 0.01)
    answer(log, 0.2)
    answer(log, 9.0)  # late, of an observation that counted as lost
    (trip,) = log.trips
    assert trip.parts_s["capture"] == 0.01
