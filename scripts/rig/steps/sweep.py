"""Every step, one after another: how many there were, and what of them must not have been."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from edge_runtime.config import StopPolicy
from scripts.rig.steps.judge import judge
from scripts.rig.steps.life import Part, Step, live

KINDS = (
    "no answer",
    "answer lost",
    "write not taken",
    "EIO",
    "echo lost",
    "lie",
    "silence",
    "supply",
    "killed",
)
LIVES: tuple[tuple[Part, StopPolicy], ...] = (
    ("start", "limp"),
    ("first start", "limp"),
    ("stop", "limp"),
    ("stop", "park"),
    ("stop", "hold"),
    ("supervisor", "limp"),
    ("supervisor", "park"),
    ("run", "limp"),
    ("run", "hold"),
)


def steps(
    folder: Path, lives: Sequence[tuple[Part, StopPolicy]] = LIVES, kinds: Sequence[str] = KINDS, *, every: int = 1
) -> Iterator[Step]:
    """Each `every`-th transaction of `lives` with each of `kinds`: with 0, each with one of them, in turn."""
    for part, policy in lives:
        counts = {echo: live(folder, Step(part, policy, echo, 0)).transactions for echo in ("none", "echo lost")}
        for number, kind in enumerate(kinds):
            transactions = counts["echo lost" if kind == "echo lost" else "none"]
            for at in range(1, transactions + 1):
                if (at + number) % (every or len(kinds)) == 0:
                    yield Step(part, policy, kind, at)


def sweep(every: int = 1) -> tuple[int, list[str]]:
    """How many combinations were lived through, on virtual clocks, and every violation."""
    with tempfile.TemporaryDirectory(prefix="steps-") as folder:
        todo = list(steps(Path(folder), every=every))
        fresh = multiprocessing.get_context("forkserver")  # a life has a thread
        with ProcessPoolExecutor(len(os.sched_getaffinity(0)), fresh) as pool:
            found = pool.map(verdict, [folder] * len(todo), todo, chunksize=16)
            return len(todo), [said for each in found for said in each]


def verdict(folder: str, step: Step) -> list[str]:
    """What must not have been in `step`."""
    return judge(live(Path(folder), step))
