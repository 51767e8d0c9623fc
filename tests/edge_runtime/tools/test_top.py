"""What `edge-runtime top` makes of a robot's metrics."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from edge_runtime.errors import StreamError
from edge_runtime.tools.top.history import History
from edge_runtime.tools.top.reading import Reading, parse, read
from edge_runtime.tools.top.screen import curve, draw

URL = "http://127.0.0.1:9464/metrics"
PAGE = """
edge_runtime_state{state="running"} 0.0
edge_runtime_state{state="holding"} 1.0
edge_runtime_queue_level 17.0
edge_runtime_threshold_rows 12.0
edge_runtime_control_hz 30.0
edge_runtime_round_trip_seconds 0.25
edge_runtime_bus_misses_total{joint="gripper"} 3.0
edge_runtime_bus_temperature{joint="gripper"} 61.0
edge_runtime_bus_load{joint="gripper"} 40.0
edge_runtime_bus_errors{joint="gripper",error="overload"} 1.0
edge_runtime_bus_misses_total{joint="elbow_flex"} 0.0
"""


def shown(history: History) -> str:
    out = io.StringIO()
    Console(file=out, width=100).print(draw(history, URL))
    return out.getvalue()


def reading(at_s: float, **numbers: float) -> Reading:
    return Reading(at_s, "running", numbers)


def test_state_queue_and_servos_are_on_the_screen() -> None:
    history = History()
    history.add(parse(PAGE, URL))
    screen = shown(history)
    assert "holding" in screen
    assert "queue 17 actions (asks at 12)" in screen
    assert "at most 17 actions" in screen
    assert "  – of 30 Hz" in screen  # a rate takes two readings
    assert "round trip 250 ms" in screen
    gripper = next(line for line in screen.splitlines() if "gripper" in line)
    assert gripper.split() == ["gripper", "3", "61", "40", "–", "–", "overload"]
    assert "elbow_flex" in screen


def test_trouble_is_shown_until_the_next_reading() -> None:
    history = History()
    history.add(parse(PAGE, URL))
    history.trouble = "does not answer"
    assert "does not answer" in shown(history)
    history.add(parse(PAGE, URL))
    assert "does not answer" not in shown(history)


def test_advice_is_about_the_port_that_was_asked() -> None:
    with pytest.raises(StreamError, match=r"127\.0\.0\.1:9/metrics does not answer .* start .* --metrics_port=9$"):
        read("http://127.0.0.1:9/metrics")


@pytest.mark.parametrize("page", ["<html>", "other_metric 1.0\n", ""])
def test_another_server_is_not_a_robot(page: str) -> None:
    with pytest.raises(StreamError, match="url"):
        parse(page, URL)


def test_rates_and_means_are_between_two_readings() -> None:
    history = History()
    history.add(reading(0.0, n_total=10, x_count=2, x_sum=1.0))
    history.add(reading(2.0, n_total=70, x_count=4, x_sum=2.0))
    history.add(reading(3.0, n_total=70, x_count=4, x_sum=2.0))
    history.add(reading(4.0, n_total=5, x_count=5, x_sum=5.0))
    assert history.rates("n_total") == [30.0, 0.0, 0.0]
    assert history.means("x") == [0.5, 0.5, 3.0]


def test_a_curve_is_as_wide_and_as_high_as_asked() -> None:
    assert curve([0, 1, 2, 4], 4, 2) == ["   █", " ▄██"]
    assert curve([], 3, 2) == ["   ", "   "]
    assert curve([0.0, 0.0], 3, 1) == ["   "]
    assert [len(line) for line in curve(range(1000), 80, 3)] == [80, 80, 80]
