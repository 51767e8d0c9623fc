"""What a run did, as one dictionary for machines and a page of text for people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from edge_runtime.program import output
from edge_runtime.timing import LEAST_S, PERCENTILES, can_tell

Report = dict[str, Any]


def write(report: Report, path: Path) -> None:
    """Write the report as JSON. Raises OutputError."""
    output.write(path, json.dumps(report, indent=2) + "\n", "summary")


def text(report: Report) -> str:
    """The report on a page, at most 100 columns."""
    loop, observations, chunks = report["loop"], report["observations"], report["chunks"]
    late, threshold = report["lateness_s"], report["threshold"]
    lines = [
        f"ran {report['duration_s']:.1f} s, {loop['ticks']} ticks at {report['control_hz']:g} Hz: "
        f"{loop['late']} late, {loop['missed']} missed, {loop['starved']} without an action"
        + (f", {loop['too_old']} actions too old" if loop["too_old"] else ""),
        f"lateness p50 {_ms(late['p50'])}, p99 {_ms(late['p99'])}, max {_ms(late['max'])}; {report['realtime']}",
        f"observations {observations['sent']} sent, {observations['must_go']} of them with the queue as good as empty; "
        f"{observations['lost']} lost, {observations['failures']} failed",
        *(f"  {what}: {_pairs(observations[kind])}" for kind, what in _NOT_RUN.items() if observations[kind]),
        f"chunks {chunks['merged']} merged, {chunks['stale']} too late, {chunks['foreign']} of another connection; "
        f"{report['reconnects']} reconnects",
        f"asked with {threshold['rows']} actions left (chunk_size_threshold {threshold['setting']})",
    ]
    stages = {stage: numbers for stage, numbers in report["stages_s"].items() if numbers["max"] >= LEAST_S}
    if stages:
        after = {stage: stages.pop(stage) for stage in ("actuate",) if stage in stages}  # not of the round trip
        lines.append(f"{'stage':<12}{'n':>7}" + "".join(f"{name:>11}" for name in _FIGURES))
        lines += [_row(stage, numbers) for stage, numbers in (stages | after).items()]
    lines.append("bus: " + _bus(report["bus"]))
    lines.append("states: " + " -> ".join(f"{state} ({at_s:.1f} s)" for at_s, state in report["states"]))
    lines += [f"fault at {fault['time_s']:.1f} s: {fault['error']}; {fault['file']}" for fault in report["faults"]]
    for episode in report["episodes"]:
        lines.append(
            f"episode seed {episode['seed']}: {'success' if episode['success'] else 'no success'} "
            f"in {episode['time_s']:.2f} s, {episode['starved_after_first_chunk']} starved ticks"
        )
    return "\n".join(lines)


_NOT_RUN = {"skipped": "skipped by the server", "unsent": "not sent"}
_FIGURES = ("mean", *PERCENTILES, "max")


def _row(stage: str, numbers: Report) -> str:
    cells = (_ms(numbers[name]) if can_tell(name, numbers["n"]) else "–" for name in _FIGURES)
    return f"{stage:<12}{numbers['n']:>7}" + "".join(f"{cell:>11}" for cell in cells)


def _bus(bus: Report) -> str:
    """Only what went wrong: `gripper (id 6) 3 misses, overload; 2 bad frames`."""
    joints = [
        f"{joint} (id {counts['id']}) {counts['misses']} misses" + (f", {counts['errors']}" if counts["errors"] else "")
        for joint, counts in bus.get("joints", {}).items()
        if counts["misses"] or counts["errors"]
    ]
    others = [f"{n} {name.replace('_', ' ')}" for name, n in bus.items() if name != "joints" and n]
    return "; ".join(joints + others) or "no errors"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def _pairs(counts: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in counts.items()) or "none"
