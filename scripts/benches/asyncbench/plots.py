"""What the tables say, drawn against a constant latency, and the queue's level over an episode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from scripts.benches.asyncbench import method, policy
from scripts.benches.asyncbench.cell import Cell
from scripts.benches.asyncbench.evidence import Evidence
from scripts.benches.asyncbench.grid import ROWS
from scripts.benches.asyncbench.link import FPS
from scripts.benches.asyncbench.reach import AT_300_MS, DEFAULT
from scripts.benches.asyncbench.table import Row
from scripts.benches.asyncbench.trial import Trial
from scripts.rig.picture import BLUE, COLOURS, GREY, VERMILION, legend, picture

_MARKERS = "os^vD<>P"
_LEVELS: tuple[method.Share, ...] = (0.0, 0.5, 0.7, "auto")


@dataclass(frozen=True)
class Measure:
    """A number of a cell and, where it has one, the 95 % interval around it."""

    label: str
    value: Callable[[Evidence], float]
    interval: Callable[[Evidence], tuple[float, float]] | None = None


SOLVED = Measure(
    "solved, %", lambda seen: 100 * seen.solved / seen.seeds, lambda seen: (100 * seen.low, 100 * seen.high)
)
TIME = Measure("task time, s", lambda seen: seen.time_s)
SEAM_MEAN = Measure("mean step at a seam,\njoint units", lambda seen: seen.seam_mean)
SEAM_MAX = Measure("largest step at a seam,\njoint units", lambda seen: seen.seam_max)


def against_latency(rows: Sequence[Row], file: Path) -> None:
    """Success and task time, sequential and asynchronous with the default method."""
    labels = {"sequential": "sequential", DEFAULT: f"asynchronous ({DEFAULT})"}
    _draw(rows, labels, (SOLVED, TIME), 720, file)


def methods(rows: Sequence[Row], file: Path) -> None:
    """Success, time and seams of every method."""
    labels = {row.cell.method: row.cell.method for row in rows}
    _draw(rows, labels, (replace(SOLVED, interval=None), TIME, SEAM_MEAN, SEAM_MAX), 1300, file)


def _draw(
    rows: Sequence[Row], labels: Mapping[str, str], measures: Sequence[Measure], height_px: int, file: Path
) -> None:
    """A column for each world, a line for each method that has a label, over the constant links and with g = auto."""
    rows = [row for row in rows if row.cell.method in labels and _is_drawn(row.cell)]
    worlds = list(dict.fromkeys(row.cell.world for row in rows))
    if not worlds:
        return
    with picture(file, height_px, len(measures), len(worlds), sharex=True, sharey="row") as axes:
        for column, world in enumerate(worlds):
            axes[0][column].set_title(f"the goal {'stays' if world == 'still' else 'moves once'}")
            axes[-1][column].set_xlabel("latency, ms")
            for axis, measure in zip(axes[:, column], measures, strict=True):
                for (name, label), colour, marker in zip(labels.items(), COLOURS, _MARKERS, strict=False):
                    seen = {_ms(r.cell): r.evidence for r in rows if (r.cell.world, r.cell.method) == (world, name)}
                    _line(axis, seen, measure, label=label, color=colour, marker=marker)
        for axis, measure in zip(axes[:, 0], measures, strict=True):
            axis.set_ylabel(measure.label)
            axis.set_ylim(0, 100 if "%" in measure.label else None)
        legend(axes[0][0], 4)


def _is_drawn(cell: Cell) -> bool:
    return cell.link.startswith("constant-") and cell.threshold == "auto" and cell.actions == ROWS


def _ms(cell: Cell) -> int:
    return int(cell.link.partition("-")[2])


def _line(axis: Any, seen: dict[int, Evidence], measure: Measure, **style: Any) -> None:
    if not seen:
        return
    at = sorted(seen)
    values = [measure.value(seen[ms]) for ms in at]
    axis.plot(at, values, linestyle="--" if style["label"] == "sequential" else "-", markersize=5, **style)
    if measure.interval:
        axis.fill_between(
            at, *zip(*(measure.interval(seen[ms]) for ms in at), strict=True), alpha=0.15, color=style["color"]
        )


def levels(cells: Sequence[Cell], seed: int, file: Path) -> None:
    """The queue over the episode of `seed` with the default method at 300 ms, one threshold under the other."""
    shown = [
        cell
        for threshold in _LEVELS
        for cell in cells
        if (cell.method, cell.world, cell.link, cell.actions) == (DEFAULT, "still", AT_300_MS, ROWS)
        and cell.threshold == threshold
    ]
    if len(shown) < 2:
        return
    with picture(file, 220 * len(shown), len(shown), sharex=True, sharey=True) as axes:
        for axis, cell in zip(axes[:, 0], shown, strict=True):
            _level(axis, cell, seed)
        axes[-1][0].set_xlabel("time from the start of the episode, s")
        legend(axes[-1][0], 3)


def _shown(threshold: method.Share) -> str:
    return threshold if isinstance(threshold, str) else f"{threshold:g}"


def _level(axis: Any, cell: Cell, seed: int) -> None:
    trial = Trial(policy.load(cell.policy), method.resolve(cell.method)(), cell, seed)
    seen = trial.run()
    level, asks_at = np.array(trial.queue).T
    at_s = np.arange(len(level)) / FPS
    axis.fill_between(at_s, level, step="post", color=BLUE, alpha=0.3, label="queued actions")
    axis.step(at_s, level, where="post", color=BLUE)
    axis.step(at_s, asks_at, where="post", color=GREY, linestyle="--", label="asks for the next chunk")
    axis.bar(at_s[level == 0], -4, 1 / FPS, align="edge", color=VERMILION, label="empty: the arm stands still")
    axis.set_title(
        f"g = {_shown(cell.threshold)}: {seen.ticks / FPS:.1f} s, "
        f"{seen.inferences} inferences, {seen.starved_after_first_chunk} empty ticks after the first chunk, "
        f"actions {seen.age_s:.2f} s old",
        fontsize="medium",
        loc="left",
    )
    axis.set_ylabel("actions")
    axis.set_ylim(-4, 1.1 * ROWS)
