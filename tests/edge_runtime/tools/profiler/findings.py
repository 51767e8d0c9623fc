"""Findings as a profile would give them, made of the numbers that a test names."""

from __future__ import annotations

from typing import Any

from edge_runtime.tools.profiler.findings import Findings, Picture, Setting
from edge_runtime.tools.profiler.stage_log import PARTS, Trip

RAW_PAIR = (Picture("top", 480, 640, 80_000), Picture("wrist", 480, 640, 90_000))


def trip(other_s: float = 0.0, **parts_s: float) -> Trip:
    parts = dict.fromkeys(PARTS, 0.0) | parts_s
    return Trip(0.0, sum(parts.values()) + other_s, parts)


def findings(
    *,
    trips: int = 20,
    other_s: float = 0.0,
    rows: int = 50,
    fps: float = 30.0,
    jpeg_quality: int = 90,
    pictures: tuple[Picture, ...] = (),
    observation_bytes: int = 100,
    bus_p95_s: float = 0.001,
    late: int = 0,
    cold_s: float = 0.0,
    **parts_s: float,
) -> Findings:
    """`parts_s` are the stages of each warm round trip; the cold one infers for `cold_s` longer."""
    warm = [trip(other_s, **parts_s) for _ in range(trips)]
    report: dict[str, Any] = {
        "duration_s": 20.0,
        "realtime": "off",
        "loop": {"ticks": 600, "late": late, "missed": 0, "starved": 3},
        "lateness_s": dict.fromkeys(("p50", "p95", "p99", "max"), 1e-4),
        "bus_time_s": {"p50": bus_p95_s / 2, "p95": bus_p95_s},
        "traffic": {
            "observations": trips + 1,
            "observation_bytes": (trips + 1) * observation_bytes,
            "chunks": trips + 1,
            "chunk_bytes": (trips + 1) * 1300,
        },
    }
    return Findings(
        setting=Setting("host:8080", "act", "none", fps, fps, rows, "auto", jpeg_quality, pictures=pictures),
        cold=trip(other_s, **parts_s | {"infer": parts_s.get("infer", 0.0) + cold_s}),
        warm=warm,
        report=report,
        levels=[(index / fps, max(rows - index % rows, 0)) for index in range(3 * rows)],
        lateness=[(1e-4, 500), (5e-3, 100)],
        cost_s=0.01,
    )
