"""The comparison as a table: medians and ranges over the rounds, ratios, and what was to be reached."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Values = Sequence[float]


@dataclass(frozen=True)
class Row:
    """One figure, and what is to be reached: ours at most theirs divided by `times_less`, ours exactly `exactly`, or at
    most `at_most`. Where more is not worse, no ratio is shown."""

    what: str
    unit: str = ""
    times_less: float | None = None
    exactly: float | None = None
    at_most: float | None = None
    more_is_worse: bool = True
    digits: int = 2


@dataclass(frozen=True)
class Line:
    """A row with what was measured, a value a round; `plain` is ours without real-time priority, where that matters."""

    row: Row
    theirs: Values
    ours: Values
    plain: Values = ()

    @property
    def times(self) -> float:
        """Theirs divided by ours, medians; nan where that says nothing."""
        theirs, ours = _median(self.theirs), _median(self.ours)
        if (
            not self.row.more_is_worse
            or not math.isfinite(theirs)
            or not math.isfinite(ours)
            or theirs <= 0
            or ours <= 0
        ):
            return math.nan
        return theirs / ours

    @property
    def met(self) -> bool | None:
        """Was the reach reached? None where there is none."""
        if self.row.times_less is not None:
            return _median(self.ours) * self.row.times_less <= _median(self.theirs)
        if self.row.exactly is not None:
            return bool(self.ours) and max(self.ours) == min(self.ours) == self.row.exactly
        if self.row.at_most is not None:
            return _median(self.ours) <= self.row.at_most
        return None

    def as_dict(self) -> dict[str, object]:
        return {
            "what": self.row.what,
            "unit": self.row.unit,
            "lerobot": list(self.theirs),
            "edge_runtime": list(self.ours),
            "edge_runtime_without_fifo": list(self.plain),
            "times_less": None if math.isnan(self.times) else self.times,
            "reach": _reach(self.row),
            "met": self.met,
        }


HEADER = ("", "LeRobot 0.6.1", "edge-runtime", "without SCHED_FIFO", "times less", "reach", "")


def lines(rows: Mapping[str, Row], found: Mapping[tuple[str, str], Values]) -> list[Line]:
    """The rows that were measured; `found` is (key, column) -> values, columns being theirs, ours and plain."""
    made = []
    for key, row in rows.items():
        columns = [found.get((key, column), ()) for column in ("theirs", "ours", "plain")]
        if any(columns):
            made.append(Line(row, *columns))
    return made


def markdown(table: Sequence[Line]) -> str:
    head = ["| " + " | ".join(HEADER) + " |", "| " + " | ".join(["---"] * len(HEADER)) + " |"]
    return "\n".join(head + [f"| {' | '.join(_cells(line))} |" for line in table])


def text(table: Sequence[Line]) -> str:
    """In columns, for a terminal."""
    cells = [list(HEADER), *(_cells(line) for line in table)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEADER))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)


def _cells(line: Line) -> list[str]:
    row = line.row
    unit = f" [{row.unit}]" if row.unit else ""
    values = [_shown(values, row.digits) for values in (line.theirs, line.ours, line.plain)]
    times = "" if math.isnan(line.times) else _ratio(line.times)
    met = {None: "", True: "met", False: "MISSED"}[line.met]
    return [row.what + unit, *values, times, _reach(row), met]


def _ratio(times: float) -> str:
    return f"{times:,.0f}" if times >= 100 else f"{times:.3g}"


def _reach(row: Row) -> str:
    if row.times_less is not None:
        return f"{row.times_less:g} times less"
    if row.exactly is not None:
        return f"{row.exactly:g}"
    return "" if row.at_most is None else f"≤ {row.at_most:g}"


def _shown(values: Values, digits: int) -> str:
    """`median (least–most)`, or one number where all are the same."""
    if not values:
        return ""
    numbers = [_number(value, digits) for value in (_median(values), min(values), max(values))]
    return numbers[0] if len(set(numbers)) == 1 else f"{numbers[0]} ({numbers[1]}–{numbers[2]})"


def _number(value: float, digits: int) -> str:
    return "never" if math.isinf(value) else f"{value:.{digits}f}"


def _median(values: Values) -> float:
    return statistics.median(values) if values else math.nan
