"""What a run did, as one dictionary for machines and a page of text for people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from edge_runtime import output

Report = dict[str, Any]


def write(report: Report, path: Path) -> None:
    """Write the report as JSON. Raises OutputError."""
    output.write(path, json.dumps(report, indent=2) + "\n", "summary")


def text(report: Report) -> str:
    """The report on a page, at most 100 columns."""
    loop, observations, chunks = report["loop"], report["observations"], report["chunks"]
    late = report["lateness_s"]
    lines = [
        f"ran {report['duration_s']:.1f} s, {loop['ticks']} ticks at {report['control_hz']:g} Hz: "
        f"{loop['late']} late, {loop['missed']} missed, {loop['starved']} starved"
        + (f", {loop['too_old']} actions too old" if loop["too_old"] else ""),
        f"lateness p50 {_ms(late['p50'])}, p99 {_ms(late['p99'])}, max {_ms(late['max'])}; {report['realtime']}",
        f"observations {observations['sent']} sent ({observations['must_go']} must go), "
        f"skipped {_pairs(observations['skipped'])}, unsent {_pairs(observations['unsent'])}, "
        f"lost {observations['lost']}, failed {observations['failures']}",
        f"chunks {chunks['merged']} merged, {chunks['stale']} stale, {chunks['foreign']} foreign; "
        f"{report['reconnects']} reconnects; threshold {report['threshold']['setting']}, "
        f"{report['threshold']['rows']} rows at the end",
    ]
    if report["stages_s"]:
        lines.append(f"{'stage':<12}{'n':>7}{'mean':>10}{'p50':>10}{'p95':>10}{'p99':>10}{'max':>10}")
        lines += [
            f"{stage:<12}{s['n']:>7}" + "".join(f"{_ms(s[key]):>10}" for key in ("mean", "p50", "p95", "p99", "max"))
            for stage, s in report["stages_s"].items()
        ]
    lines.append("bus: " + _bus(report["bus"]))
    lines.append("states: " + " -> ".join(f"{state} ({at_s:.1f} s)" for at_s, state in report["states"]))
    lines += [f"fault at {fault['time_s']:.1f} s: {fault['error']}; {fault['file']}" for fault in report["faults"]]
    for episode in report["episodes"]:
        lines.append(
            f"episode seed {episode['seed']}: {'success' if episode['success'] else 'no success'} "
            f"in {episode['time_s']:.2f} s, {episode['starved_after_first_chunk']} starved ticks"
        )
    return "\n".join(lines)


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
