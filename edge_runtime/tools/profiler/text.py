"""A profile as a page of text, and as a dictionary for machines."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import Any

from edge_runtime.timing import LEAST_S, PERCENTILES, can_tell
from edge_runtime.tools.profiler.findings import Distribution, Findings
from edge_runtime.tools.profiler.verdict import sentences

WIDTH = 96


def report(findings: Findings) -> str:
    """At most 100 columns, the verdict last: it is what one reads first when the text scrolls by."""
    setting, bus, late = findings.setting, findings.report["bus_time_s"], findings.report["lateness_s"]
    loop = findings.report["loop"]
    lines = [
        f"policy {setting.policy} on {setting.server}, robot {setting.robot}, {setting.fps:g} fps, chunks of "
        f"{setting.rows}, threshold {setting.threshold}"
        + (f", {setting.idle_gap_ms:g} ms of rest before each observation" if setting.idle_gap_ms else ""),
        "",
        f"{'stage (ms)':<12}{'cold':>10}{'n':>7}{'mean':>10}{'p50':>10}{'p95':>10}{'p99':>10}{'max':>10}",
    ]
    for stage, numbers in findings.stages.items():
        if max(cold(findings)[stage], numbers.max) < LEAST_S:
            continue  # such as inject, where no delay was asked for
        if stage == "round_trip":
            lines.append("-" * 79)
        lines.append(_row(stage, cold(findings)[stage], numbers))
    lines += [
        "",
        f"bus {_ms(bus['p50'])} p50, {_ms(bus['p95'])} p95 of a period of {_ms(1 / setting.control_hz)}, at the loop's "
        f"rate; lateness {_ms(late['p50'])} p50, {_ms(late['p99'])} p99",
        f"queue: {loop['starved']} of {loop['ticks']} ticks without an action; "
        f"{findings.observation_bytes:.0f} bytes per observation, {findings.chunk_bytes:.0f} per chunk",
        f"the profiler itself took {findings.cost_share:.3%} of the time",
        "",
        *(_wrap(sentence) for sentence in sentences(findings)),
    ]
    return "\n".join(lines)


def as_dict(findings: Findings) -> dict[str, Any]:
    """All figures; seconds and bytes."""
    return {
        "setting": asdict(findings.setting),
        "cold_s": cold(findings),
        "warm_s": {stage: asdict(numbers) for stage, numbers in findings.stages.items()},
        "bytes": {"observation": findings.observation_bytes, "chunk": findings.chunk_bytes},
        "bound_by": findings.bound_by,
        "groups_s": findings.groups,
        "quantile_s": findings.quantile_s,
        "safe_threshold": findings.safe_rows / findings.setting.rows,
        "fits": findings.fits,
        "least_chunk": findings.least_chunk,
        "most_fps": findings.most_fps,
        "robots": findings.robots,
        "profiler_cost": findings.cost_share,
        "verdict": sentences(findings),
        "round_trips_s": [trip.round_trip_s for trip in (findings.cold, *findings.warm)],
        "summary": dict(findings.report),
    }


def cold(findings: Findings) -> dict[str, float]:
    """The first round trip, in the order of the others."""
    trip = findings.cold
    return {**trip.parts_s, "other": trip.other_s, "round_trip": trip.round_trip_s}


def _row(stage: str, cold_s: float, numbers: Distribution) -> str:
    return f"{stage:<12}{cold_s * 1e3:>10.2f}{numbers.n:>7}" + "".join(f"{cell:>10}" for cell in cells(numbers))


def cells(numbers: Distribution) -> list[str]:
    """Mean, p50, p95, p99 and max in ms; a dash for a percentile that so few samples do not have."""
    return [
        f"{getattr(numbers, name) * 1e3:.2f}" if can_tell(name, numbers.n) else "–"
        for name in ("mean", *PERCENTILES, "max")
    ]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def _wrap(sentence: str) -> str:
    return textwrap.fill(sentence, WIDTH, initial_indent="* ", subsequent_indent="  ")
