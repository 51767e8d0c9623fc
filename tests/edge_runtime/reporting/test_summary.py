"""The page that a run ends with: plain words, and no figure that means nothing."""

from __future__ import annotations

from typing import Any

from edge_runtime.reporting import summary


def stage(n: int, seconds: float) -> dict[str, float]:
    return {"n": n} | dict.fromkeys(("mean", "p50", "p95", "p99", "max"), seconds)


def report(n: int = 7) -> dict[str, Any]:
    return {
        "duration_s": 9.6,
        "control_hz": 30.0,
        "realtime": "SCHED_FIFO 80",
        "loop": {"ticks": 240, "late": 0, "missed": 0, "starved": 1, "too_old": 0},
        "lateness_s": stage(240, 1e-4),
        "observations": {
            "sent": 7,
            "must_go": 1,
            "skipped": {"similar": 2},
            "unsent": {},
            "lost": 0,
            "failures": 0,
        },
        "threshold": {"setting": "auto", "rows": 14},
        "chunks": {"merged": 7, "stale": 0, "foreign": 0},
        "reconnects": 0,
        "stages_s": {
            "infer": stage(n, 0.001),
            "inject": stage(n, 1e-7),
            "actuate": stage(n, 0.028),
            "round_trip": stage(n, 0.004),
        },
        "bus": {},
        "states": [[0.0, "starting"], [0.9, "running"]],
        "faults": [],
        "episodes": [],
    }


def test_plain_words() -> None:
    said = summary.text(report())
    assert "1 without an action" in said
    assert "7 sent, 1 of them with the queue as good as empty" in said
    assert "\n  skipped by the server: similar 2\n" in said
    assert "not sent" not in said  # there was none
    assert not any(word in said for word in ("must go", "foreign", "stale", "starved"))
    assert max(map(len, said.splitlines())) <= 100


def test_stages_that_took_time_the_round_trip_below_its_parts_and_what_comes_after_it_last() -> None:
    rows = [line.split() for line in summary.text(report()).splitlines() if line.endswith(" ms")]
    assert [row[0] for row in rows] == ["infer", "round_trip", "actuate"]
    assert rows[0][2:] == ["1.00", "ms", "1.00", "ms", "–", "–", "1.00", "ms"]
    assert "–" not in summary.text(report(n=100))
