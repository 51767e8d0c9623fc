"""What the tables say, drawn: success, time and seams against a constant latency."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # after the backend is chosen

from asyncbench.evidence import Evidence
from asyncbench.grid import ROWS
from asyncbench.table import Row

_MEASURES: tuple[tuple[str, Callable[[Evidence], float]], ...] = (
    ("solved, %", lambda seen: 100 * seen.solved / seen.seeds),
    ("task time, s", lambda seen: seen.time_s),
    ("mean step at a seam, joint units", lambda seen: seen.seam_mean),
    ("largest step at a seam, joint units", lambda seen: seen.seam_max),
)


def against_latency(rows: Sequence[Row], file: Path) -> None:
    """One column for each world, one line for each method, over the constant links with the automatic threshold."""
    shown = [
        row
        for row in rows
        if row.cell.link.startswith("constant-") and row.cell.threshold == "auto" and row.cell.actions == ROWS
    ]
    worlds = list(dict.fromkeys(row.cell.world for row in shown))
    if not worlds:
        return
    figure, axes = plt.subplots(
        len(_MEASURES), len(worlds), figsize=(5 * len(worlds), 11), sharex=True, sharey="row", squeeze=False
    )
    for column, world in enumerate(worlds):
        axes[0][column].set_title(f"{world} goal")
        axes[-1][column].set_xlabel("latency, ms")
        for line, (name, measure) in enumerate(_MEASURES):
            axes[line][0].set_ylabel(name)
            _draw(axes[line][column], [row for row in shown if row.cell.world == world], measure)
    for (axis, *_), (_, measure) in zip(axes, _MEASURES, strict=True):
        seen = [measure(row.evidence) for row in shown]
        axis.set_ylim(0, 1.1 * max((value for value in seen if value > 0), default=1.0))  # no NaN is
    axes[0][0].legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(file, dpi=110, metadata={"Software": None})
    plt.close(figure)


def _draw(axis: plt.Axes, rows: Sequence[Row], measure: Callable[[Evidence], float]) -> None:
    for method in dict.fromkeys(row.cell.method for row in rows):
        points = [
            (int(row.cell.link.partition("-")[2]), measure(row.evidence)) for row in rows if row.cell.method == method
        ]
        style = "k--" if method == "sequential" else "-"
        axis.plot(*zip(*sorted(points), strict=True), style, marker=".", label=method)
    axis.grid(alpha=0.3)
