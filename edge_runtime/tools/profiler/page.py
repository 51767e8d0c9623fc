"""A profile as one page of HTML that needs nothing else: verdict, stages, round trips, lateness, queue."""

from __future__ import annotations

import html
from collections.abc import Sequence

from edge_runtime.timing import LEAST_S, can_tell
from edge_runtime.tools.profiler import drawing
from edge_runtime.tools.profiler.findings import Findings
from edge_runtime.tools.profiler.stage_log import PARTS, Trip
from edge_runtime.tools.profiler.text import cells, cold
from edge_runtime.tools.profiler.verdict import sentences

MOST_COLUMNS = 300
SUM = ' class="sum"'
COLOURS = {
    "capture": "#5b8c5a",
    "encode": "#9ecae1",
    "network": "#4292c6",
    "receive": "#08519c",
    "admit": "#bcbddc",
    "wait": "#807dba",
    "prepare": "#fdae6b",
    "infer": "#e6550d",
    "inject": "#8c6d31",
    "finish": "#fdd0a2",
    "merge": "#31a354",
    "other": "#bdbdbd",
}
ORDER = ("capture", "encode", "network", "receive", "admit", "wait", "prepare", "infer", "inject", "finish", "merge")

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --soft: #6a6a6a; --line: #d8d8d8; --paper: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --soft: #a0a0a0; --line: #444; --paper: #1b1b1d; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 940px; margin: 2rem auto; padding: 0 1rem; color: var(--ink);
       background: var(--paper); }
h1 { font-size: 1.5rem; margin-bottom: 0; }
h2 { font-size: 1.1rem; margin: 2rem 0 .3rem; }
p.setting { color: var(--soft); margin-top: .2rem; }
ul.verdict { padding-left: 1.2rem; }
ul.verdict li { margin: .35rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; }
th, td { text-align: right; padding: .15rem .6rem; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
tr.sum td { font-weight: 600; }
svg { width: 100%; height: auto; font: 11px system-ui, sans-serif; }
.axis, .grid { stroke: var(--line); } .grid { stroke-dasharray: 2 3; }
.tick, .label { fill: var(--soft); }
.mark { stroke: var(--ink); stroke-dasharray: 4 3; }
.bin { fill: #4292c6; }
.level { fill: none; stroke: #4292c6; stroke-width: 1.2; }
.dry { fill: #d62728; opacity: .35; }
.legend span { display: inline-block; margin-right: 1rem; color: var(--soft); }
.legend i { display: inline-block; width: .8rem; height: .8rem; margin-right: .3rem; vertical-align: -1px; }
"""


def render(findings: Findings) -> str:
    """The page; every text that comes from elsewhere is escaped."""
    setting = findings.setting
    said = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences(findings))
    described = (
        f"Policy {setting.policy} on {setting.server}, robot {setting.robot}, {setting.fps:g} fps, chunks of "
        f"{setting.rows} actions, threshold {setting.threshold}. {findings.observation_bytes:,.0f} bytes per "
        f"observation, {findings.chunk_bytes:,.0f} per chunk."
    )
    colours = "".join(f".part-{part} {{ fill: {colour}; }}\n" for part, colour in COLOURS.items())
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>edge-runtime profile</title><style>{_STYLE}{colours}</style></head><body>
<h1>Where every millisecond goes</h1>
<p class="setting">{html.escape(described)}</p>
<ul class="verdict">{said}</ul>
<h2>A round trip, from the tick that read the state to the merge</h2>
{drawing.stacked_bars(_bars(findings), "ms")}
{_legend()}
{_table(findings)}
<h2>Each round trip</h2>
{drawing.stacked_columns([_column(trip) for trip in _thinned(findings.warm)], "warm round trips, in order", "ms")}
<h2>How long round trips take</h2>
{_round_trips(findings)}
<h2>How late the loop wakes up</h2>
{_lateness(findings)}
<h2>The queue over time</h2>
{_queue(findings)}
</body></html>
"""


def _bars(findings: Findings) -> dict[str, dict[str, float]]:
    stages = findings.stages
    bars = {
        "cold": _column(findings.cold),
        "warm, mean": {part: stages[part].mean * 1e3 for part in (*ORDER, "other")},
    }
    if can_tell("p95", stages["other"].n):
        bars["warm, each p95"] = {part: stages[part].p95 * 1e3 for part in (*ORDER, "other")}
    return bars


def _column(trip: Trip) -> dict[str, float]:
    return {**{part: trip.parts_s[part] * 1e3 for part in ORDER}, "other": trip.other_s * 1e3}


def _thinned(trips: Sequence[Trip]) -> Sequence[Trip]:
    return trips[:: -(-len(trips) // MOST_COLUMNS)]


def _legend() -> str:
    entries = "".join(f'<span><i style="background:{COLOURS[part]}"></i>{part}</span>' for part in (*ORDER, "other"))
    return f'<p class="legend">{entries}</p>'


def _table(findings: Findings) -> str:
    first = cold(findings)
    rows = []
    for stage in (*PARTS, "other", "round_trip"):
        numbers = findings.stages[stage]
        if max(first[stage], numbers.max) < LEAST_S:
            continue
        values = "".join(f"<td>{cell}</td>" for cell in (f"{first[stage] * 1e3:.2f}", *cells(numbers)))
        rows.append(f"<tr{SUM * (stage == 'round_trip')}><td>{stage}</td>{values}<td>{numbers.n}</td></tr>")
    head = "".join(f"<th>{name}</th>" for name in ("ms", "cold", "mean", "p50", "p95", "p99", "max", "n"))
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _round_trips(findings: Findings) -> str:
    trips = findings.stages["round_trip"]
    shown = {name: getattr(trips, name) * 1e3 for name in ("p50", "p95") if can_tell(name, trips.n)}
    marks = {f"{name} {value:.1f}": value for name, value in shown.items()}
    return drawing.histogram([(trip.round_trip_s * 1e3, 1) for trip in findings.warm], "ms", marks)


def _lateness(findings: Findings) -> str:
    late_ms = 100 / findings.setting.control_hz
    points = [(seconds * 1e3, count) for seconds, count in findings.lateness]
    return drawing.histogram(points, "ms after the deadline", {f"late from {late_ms:.2f}": late_ms})


def _queue(findings: Findings) -> str:
    rows = min(findings.safe_rows, findings.setting.rows)
    return drawing.steps(findings.levels, "seconds", "actions queued", rows, f"g*: {rows} left")
