"""The rule behind `chunk_size_threshold: auto`: what it asks for, and that the queue does not run dry on it."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest

from edge_runtime.config import StartConfig
from edge_runtime.errors import ConfigError
from edge_runtime.planning.threshold import AutoThreshold, part_of
from edge_runtime.program import flags
from edge_runtime.timing import EARLY_FACTOR, EARLY_SAMPLES, LatencyWindow

FPS = 30.0
CHUNK = 50


def window(*seconds: float, risk: float = 0.01) -> LatencyWindow:
    latency = LatencyWindow.for_risk(risk, slack_s=1 / FPS)
    for each in seconds:
        latency.record(each)
    return latency


def rows(latency: LatencyWindow, *, filtered: bool = False) -> int:
    return AutoThreshold(latency, FPS, CHUNK, filtered).rows


def settled(seconds: float) -> LatencyWindow:
    return window(9.0, *[seconds] * EARLY_SAMPLES)


@pytest.mark.parametrize(("risk", "length"), [(0.01, 99), (0.1, 9), (0.5, 1), (0.03, 33)])
def test_the_window_is_the_shortest_for_the_risk(risk: float, length: int) -> None:
    latency = window(9.0, 0.5, *[0.1] * (length - 1), risk=risk)
    assert latency.quantile() == 0.5
    latency.record(0.1)
    assert latency.quantile() == 0.1


def test_the_largest_and_a_tick_of_margin() -> None:
    assert rows(settled(0.31)) == math.ceil(0.31 * FPS) + 1
    assert rows(settled(9.0)) == CHUNK


def test_the_first_is_cold_and_does_not_count_once_there_is_another() -> None:
    assert window(0.511).quantile() == 0.511
    assert window(0.511, *[0.27] * EARLY_SAMPLES).bound() <= 0.3


def test_until_the_tenth_the_bound_is_wider() -> None:
    latency = window(0.9)
    for number in range(1, 15):
        latency.record(0.2)
        assert latency.bound() == pytest.approx(0.2 * (EARLY_FACTOR if number < EARLY_SAMPLES else 1.0))


def test_a_rise_is_answered_at_once_and_with_room_for_the_next() -> None:
    latency = settled(0.1)
    latency.record(0.4)
    assert latency.bound() == pytest.approx(0.6)
    for _ in range(EARLY_SAMPLES - 1):
        latency.record(0.4)
    assert latency.bound() == pytest.approx(0.4)


def test_a_rise_of_less_than_a_tick_is_none() -> None:
    latency = settled(0.1)
    latency.record(0.13)
    assert latency.bound() == 0.13


def test_a_fall_is_believed_once_the_window_has_forgotten() -> None:
    latency = window(9.0, *[0.5] * 20)
    for _ in range(98):
        latency.record(0.1)
        assert latency.bound() == 0.5
    latency.record(0.1)
    assert latency.bound() == 0.1


def test_with_the_filter_on_there_is_time_to_be_skipped() -> None:
    assert rows(settled(0.3), filtered=True) == rows(settled(0.3)) + part_of(0.25, CHUNK)
    assert rows(settled(1.2), filtered=True) == part_of(0.9, CHUNK)
    assert rows(settled(2.0), filtered=True) == CHUNK  # never below g*


def test_the_floor_asks_earlier_but_not_of_an_overloaded_server() -> None:
    overloaded = False
    latency = settled(0.1)
    threshold = AutoThreshold(latency, FPS, CHUNK, floor=0.5, overloaded=lambda: overloaded)
    assert threshold.rows == 25
    overloaded = True
    assert threshold.rows == rows(latency)
    latency.record(1.0)
    assert AutoThreshold(latency, FPS, CHUNK, floor=0.5).rows == rows(latency) > 25


def test_rows_of_a_part_do_not_suffer_from_doubles() -> None:
    assert part_of(0.29, 100) == 29
    assert part_of(0.0, 50) == 0
    assert part_of(1.0, 50) == 50


def starved(latencies_s: Iterable[float], warm_up: int) -> tuple[int, int]:
    """Chunks that came after the queue had run dry, and chunks, after the first `warm_up`; one in flight, no jitter."""
    latency = window()
    dry = count = 0
    level = 0
    for number, seconds in enumerate(latencies_s):
        level = min(level, max(rows(latency), 0))  # it drains until it is time to ask
        needed = math.ceil(seconds * FPS)
        if number >= warm_up:
            dry += needed > level
            count += 1
        level = CHUNK - min(needed, level)
        latency.record(seconds)
    return dry, count


def test_independent_latencies_run_it_dry_no_more_often_than_the_risk() -> None:
    draws = np.random.default_rng(7)
    dry, count = starved(0.15 * np.exp(0.5 * draws.standard_normal(30_000)), warm_up=100)
    assert 0 < dry <= 0.01 * count + 3 * math.sqrt(0.01 * count)


def test_a_step_costs_two_chunks_at_most() -> None:
    draws = np.random.default_rng(8)
    level = np.repeat([0.1, 0.4, 0.15, 0.6, 0.1, 0.5], 150)
    dry, _ = starved(level * (1 + 0.1 * draws.random(level.size)), warm_up=20)
    assert 1 <= dry <= 2 * 3


def test_auto_is_the_default_and_a_number_is_taken_as_given() -> None:
    def threshold(*arguments: str) -> object:
        flag = ["--robot.type=so101_follower", *arguments]
        return flags.parse(StartConfig, flag, "t").chunk_size_threshold

    assert threshold() == "auto"
    assert threshold("--chunk_size_threshold=auto") == "auto"
    assert threshold("--chunk_size_threshold=0.7") == 0.7
    with pytest.raises(ConfigError, match=r"chunk_size_threshold: 1\.5"):
        threshold("--chunk_size_threshold=1.5")
    with pytest.raises(ConfigError, match="chunk_size_threshold: 'often' is not"):
        threshold("--chunk_size_threshold=often")
    with pytest.raises(ConfigError, match="starve_risk"):
        flags.parse(StartConfig, ["--robot.type=so101_follower", "--starve_risk=0"], "t")
