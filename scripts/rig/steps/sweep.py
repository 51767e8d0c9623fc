"""Every step, one after another: how many there were, and what of them must not have been."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from edge_runtime.config import StopPolicy
from scripts.rig.steps import processes
from scripts.rig.steps.judge import judge
from scripts.rig.steps.life import SIGNALS, Part, Step, live

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
LIVES_OF_PROCESSES = tuple(life for life in LIVES if life != ("stop", "hold"))  # that stop says nothing to the servos
SPREAD = 20  # signals over a run
AT_ONCE = 2  # lives on each CPU: one waits for its pty often
PROCESSES_AT_ONCE = 4  # they sleep most of the time
ATTEMPTS = 3

Verdict = list[str] | None  # the violations in a step; None where its transaction never came


def steps(
    folder: Path,
    lives: Sequence[tuple[Part, StopPolicy]] = LIVES,
    kinds: Sequence[str] = KINDS,
    *,
    every: int = 1,
    spread: int = 0,
) -> Iterator[Step]:
    """Each `every`-th transaction of `lives` with each of `kinds`: with 0, each with one of them, in turn.

    With `spread` it is so many of a run only.
    """
    for part, policy in lives:
        counts = {echo: live(folder, Step(part, policy, echo, 0)).transactions for echo in ("none", "echo lost")}
        for number, kind in enumerate(kinds):
            transactions = counts["echo lost" if kind == "echo lost" else "none"]
            chosen: Iterable[int] = range(1, transactions + 1)
            if spread and part == "run":
                chosen = (1 + transactions * place // (spread + 1) for place in range(spread))
            for turn, at in enumerate(chosen, start=1):
                if (turn + number) % (every or len(kinds)) == 0:
                    yield Step(part, policy, kind, at)


def sweep(every: int = 1) -> Iterator[list[str]]:
    """The violations in each combination that was lived through: on virtual clocks, then with processes."""
    cpus = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="steps-") as folder:
        virtual = steps(Path(folder), every=every)
        real = steps(Path(folder), LIVES_OF_PROCESSES, SIGNALS, every=every or 3 * len(SIGNALS), spread=SPREAD)
        yield from _judged(folder, verdict, virtual, AT_ONCE * cpus)
        yield from _judged(folder, verdict_on_processes, real, PROCESSES_AT_ONCE * cpus)


def verdict(folder: str, step: Step) -> Verdict:
    """What must not have been in `step`."""
    return judge(live(Path(folder), step))


def verdict_on_processes(folder: str, step: Step) -> Verdict:
    """The same of runtime and supervisor as processes, in real time.

    The machine may have let one of them wait for long: what must not have been counts where it comes at every attempt.
    """
    violations: Verdict = None
    for _ in range(ATTEMPTS):
        account = processes.live(Path(folder), step)
        violations = None if account is None else judge(account)
        if violations == []:
            break
    return violations


def _judged(
    folder: str, judged: Callable[[str, Step], Verdict], todo: Iterable[Step], at_once: int
) -> Iterator[list[str]]:
    """Without those whose transaction never came."""
    todo = list(todo)
    fresh = multiprocessing.get_context("forkserver")  # a life has a thread
    with ProcessPoolExecutor(at_once, fresh) as pool:
        for found in pool.map(judged, [folder] * len(todo), todo, chunksize=4):
            if found is not None:
                yield found
