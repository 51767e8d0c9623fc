"""The status line: what it says, how often, and that log lines do not mix with it."""

from __future__ import annotations

import io
import logging
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from edge_runtime.reporting.status_line import WIDTH, StatusLine

ERASE = "\r\x1b[K"


@dataclass
class RunStats:
    """As much of a run's stats as the line asks for."""

    level: int = 22
    ticks: int = 0
    hello: Any = field(default_factory=lambda: SimpleNamespace(actions_per_chunk=50))

    @property
    def loop(self) -> Any:
        return SimpleNamespace(counters=lambda: {"ticks": self.ticks, "starved": 3})

    def now(self) -> dict[str, Any]:
        return {"state": "running", "queue_level": self.level, "round_trip_s": 0.312, "jpeg_quality": 93}


def drive(line: StatusLine, stats: RunStats, ticks: int, hz: float = 30.0) -> None:
    for _ in range(ticks):
        stats.ticks += 1
        record: Any = SimpleNamespace(time_ns=int(1e9 + stats.ticks / hz * 1e9))
        line.see(record, stats)  # type: ignore[arg-type]


def test_it_says_state_rate_queue_and_round_trip_four_times_a_second() -> None:
    out, stats = io.StringIO(), RunStats()
    with StatusLine(out) as line:
        drive(line, stats, 90)
    drawn = [text for text in out.getvalue().split(ERASE) if text]
    assert 10 <= len(drawn) <= 13
    assert drawn[-1] == "running   30.0 Hz  queue ████░░░░░░ 22 of 50  round trip 312 ms  3 starved"
    assert max(map(len, drawn)) <= WIDTH
    assert out.getvalue().endswith(ERASE)


@pytest.mark.parametrize("level", [0, 50, 100])
def test_any_level_can_be_drawn(level: int) -> None:
    out, stats = io.StringIO(), RunStats(level=level)
    with StatusLine(out) as line:
        drive(line, stats, 30)
    assert f" {level} of 50" in out.getvalue()


def test_a_log_line_starts_on_a_line_of_its_own() -> None:
    out, stats = io.StringIO(), RunStats()
    handler = logging.StreamHandler(out)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        with StatusLine(out) as line:
            drive(line, stats, 30)
            logging.getLogger("somebody").warning("the ring ran dry")
            assert out.getvalue().endswith(f"{ERASE}the ring ran dry\n")
        assert handler.filters == []
    finally:
        root.removeHandler(handler)
