"""The results as tables: Markdown to read, CSV to compute with; the same bytes for the same results."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

from scripts.benches.asyncbench.cell import Cell
from scripts.benches.asyncbench.evidence import Evidence


@dataclass(frozen=True)
class Row:
    cell: Cell
    evidence: Evidence


def to_csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([field.name for kind in (Cell, Evidence) for field in fields(kind)])
    for row in rows:
        writer.writerow([*astuple(row.cell), *map(_exact, astuple(row.evidence))])
    return text.getvalue()


def to_markdown(rows: Sequence[Row]) -> str:
    """One table for each policy, world, number of actions and link, in the order of `rows`."""
    lines: list[str] = []
    for head, group in itertools.groupby(rows, key=lambda row: _head(row.cell)):
        lines += [f"### {head}", "", *_HEADER]
        lines += [_line(row) for row in group] + [""]
    return "\n".join(lines)


_COLUMNS = (
    *("method", "g", "solved", "95 %", "p", "time s", "×", "× moving", "starved"),
    *("seam mean", "seam max", "step max", "age s", "inferences"),
)
_HEADER = (f"| {' | '.join(_COLUMNS)} |", f"|{' --- |' * len(_COLUMNS)}")


def _head(cell: Cell) -> str:
    return f"{cell.policy} policy, {cell.world} goal, {cell.actions} rows, {cell.link} ms"


def _line(row: Row) -> str:
    cell, seen = row.cell, row.evidence
    columns = (
        cell.method,
        str(cell.threshold),
        f"{seen.solved}/{seen.seeds}",
        f"{100 * seen.low:.0f}–{100 * seen.high:.0f}",
        _shown(seen.p_value, 3),
        _shown(seen.time_s, 2),
        _shown(seen.speed_up, 2),
        _shown(seen.speed_up_moving, 2),
        _shown(seen.starved, 1),
        _shown(seen.seam_mean, 1),
        _shown(seen.seam_max, 1),
        _shown(seen.step_max, 1),
        _shown(seen.age_s, 2),
        _shown(seen.inferences, 1),
    )
    return f"| {' | '.join(columns)} |"


def _shown(value: float, digits: int) -> str:
    return "" if math.isnan(value) else f"{value:.{digits}f}"


def _exact(value: float) -> str:
    return str(value) if isinstance(value, int) else _shown(value, 6)
