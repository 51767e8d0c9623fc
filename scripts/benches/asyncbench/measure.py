"""Running cells on several processors."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Callable, Iterator, Sequence

from scripts.benches.asyncbench import method, policy
from scripts.benches.asyncbench.cell import Cell
from scripts.benches.asyncbench.outcome import Outcome
from scripts.benches.asyncbench.results import Results
from scripts.benches.asyncbench.trial import Trial

SEEDS_AT_ONCE = 10  # for one process: a second of work, so that little is lost when the bench is ended

Piece = tuple[Cell, list[int]]


def measure(
    cells: Sequence[Cell], seeds: range, results: Results, processes: int, tell: Callable[[int, int], None]
) -> None:
    """Run what `results` lacks; `tell` hears how many episodes of how many are done."""
    pieces = list(_missing(cells, seeds, results))
    if not pieces:
        return
    done, of_all = 0, sum(len(missing) for _, missing in pieces)
    spawn = multiprocessing.get_context("spawn")  # a forked process would share ONNX Runtime's and MuJoCo's state
    with spawn.Pool(min(processes, len(pieces)), _be_quiet) as pool:
        for cell, outcomes in pool.imap_unordered(_run, pieces):
            results.add(cell, outcomes)
            done += len(outcomes)
            tell(done, of_all)


def _missing(cells: Sequence[Cell], seeds: range, results: Results) -> Iterator[Piece]:
    for cell in cells:
        missing = [seed for seed in seeds if seed not in results.of(cell)]
        for start in range(0, len(missing), SEEDS_AT_ONCE):
            yield cell, missing[start : start + SEEDS_AT_ONCE]


def _be_quiet() -> None:
    """That a link is slower than a chunk is what is being measured, and no news."""
    logging.getLogger("edge_runtime").setLevel(logging.ERROR)


def _run(piece: Piece) -> tuple[Cell, list[Outcome]]:
    cell, seeds = piece
    loaded, kind = policy.load(cell.policy), method.resolve(cell.method)
    return cell, [Trial(loaded, kind(), cell, seed).run() for seed in seeds]
