"""What is to be reached, and what was: a line for each goal whose cells were run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from scripts.benches.asyncbench.grid import ROWS
from scripts.benches.asyncbench.table import Row
from scripts.rig import bench

DEFAULT = "linear_blend"
FASTER, AT_500_MS = 1.5, "constant-500"
KEPT, FAR = 0.9, ("constant-800", "lognormal-500")
SMOOTHER, AT_300_MS = 0.5, "constant-300"
SEAM, STALLS = 20.0, "lognormal-500"  # units; 55 before late chunks were blended
TIME_S, LONGER, SEEDS = 3.38, 1.02, 100  # before there was a limit of acceleration, for the default's seeds
SLOWED = 0.001  # of the ticks


def lines(rows: Sequence[Row]) -> list[str]:
    rows = [row for row in rows if row.cell.actions == ROWS]
    return [bench.line(what, met) for goal in (_faster, _kept, _smoother, _late, _slowed) for what, met in goal(rows)]


def _faster(rows: Sequence[Row]) -> Iterator[tuple[str, bool]]:
    for row in _where(rows, lambda row: row.cell.link == AT_500_MS and row.cell.threshold == 0.5, DEFAULT):
        seen = row.evidence
        yield (
            f"{DEFAULT} at {AT_500_MS} ms, g = 0.5, {row.cell.world} goal: {seen.speed_up:.2f} times as fast as "
            f"sequential (reach {FASTER}; {seen.speed_up_moving:.2f} without the wait for the first chunk), solved "
            f"{seen.solved}/{seen.seeds}, difference by chance p = {seen.p_value:.2f}",
            seen.speed_up >= FASTER,
        )


def _kept(rows: Sequence[Row]) -> Iterator[tuple[str, bool]]:
    for base in _where(rows, lambda row: row.cell.link in FAR, "sequential"):
        others = [row for row in rows if row.cell.sequential == base.cell and row is not base]
        if others and base.evidence.solved:
            best = max(others, key=lambda row: (row.evidence.solved, row.cell.method == DEFAULT))
            kept = best.evidence.solved / base.evidence.solved
            yield (
                f"{best.cell.method} at {base.cell.link} ms, {base.cell.world} goal: {kept:.0%} of the success of "
                f"sequential (reach {KEPT:.0%})",
                kept >= KEPT,
            )


def _smoother(rows: Sequence[Row]) -> Iterator[tuple[str, bool]]:
    for row in _where(rows, lambda row: row.cell.link == AT_300_MS, DEFAULT):
        for plain in (other for other in rows if other.cell == row.cell.with_method("latest_only")):
            share = row.evidence.seam_max / plain.evidence.seam_max
            yield (
                f"{DEFAULT} at {AT_300_MS} ms, g = {row.cell.threshold}, {row.cell.world} goal: largest step at a seam "
                f"{share:.2f} of latest_only's (reach {SMOOTHER})",
                share <= SMOOTHER,
            )


def _late(rows: Sequence[Row]) -> Iterator[tuple[str, bool]]:
    for row in _where(rows, lambda row: row.cell.link == STALLS and row.cell.threshold == "auto", DEFAULT):
        seam = row.evidence.seam_max
        said = f"largest step at a seam {seam:.1f} units (reach {SEAM:g})"
        yield f"{DEFAULT} at {STALLS} ms, {row.cell.world} goal: {said}", seam <= SEAM


def _slowed(rows: Sequence[Row]) -> Iterator[tuple[str, bool]]:
    for row in _where(rows, lambda row: row.cell.link == AT_300_MS and row.cell.threshold == "auto", DEFAULT):
        seen = row.evidence
        if (row.cell.policy, row.cell.world, seen.seeds) == ("state", "still", SEEDS):
            said = f"{seen.time_s:.2f} s, {TIME_S} without a limit of acceleration (reach {LONGER} times that)"
            yield f"{DEFAULT} at {AT_300_MS} ms: {said}", seen.time_s <= LONGER * TIME_S
    ours = _where(rows, lambda row: row.cell.threshold == "auto" and row.cell.link != "constant-0", DEFAULT)
    if ours:
        most = max(row.evidence.slowed for row in ours)
        said = f"the limit of acceleration acts in {most:.3%} of the ticks at most (reach {SLOWED:.1%})"
        yield f"{DEFAULT}: {said}", most <= SLOWED


def _where(rows: Iterable[Row], holds: Callable[[Row], bool], method: str) -> list[Row]:
    return [row for row in rows if row.cell.method == method and holds(row)]
