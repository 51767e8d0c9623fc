"""Runs a target on inputs grown from its corpus, keeps what has a new outcome, and catches what must not happen."""

from __future__ import annotations

import hashlib
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from scripts.rig.fuzzing.mutations import mutate
from scripts.rig.fuzzing.targets import Target

MOST_OUTCOMES = 200  # where sentences repeat what was said there is no end to them
HANG_S = 2.0  # of processor time for one input, which is then given up
SLOW_S = 0.05  # of processor time: an input that takes longer each time is a way to keep a server busy
TRIES = 4  # the first may pay for what is loaded or collected


class Hang(BaseException):
    """One input took too long. Not an Exception: nothing that is tried may swallow it."""


class Slow(Exception):
    """One input costs a server more than any may."""


@dataclass(frozen=True)
class Defect:
    """An input and what it led to."""

    target: str
    data: bytes
    what: str

    @property
    def name(self) -> str:
        return f"defect-{hashlib.sha256(self.data).hexdigest()[:12]}"


@dataclass
class Fuzzer:
    """One target. `pool` grows by every input whose outcome nobody had seen."""

    target: Target
    seed: int
    before: Callable[[bytes], None] = lambda data: None  # is shown each input first, in case nothing comes after it
    inputs: int = 0
    slowest_s: float = 0.0  # of processor time, among those that are no defect
    outcomes: dict[str, bytes] = field(default_factory=dict)
    defects: list[Defect] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._chance = random.Random(f"{self.seed} {self.target.name}")
        self.pool = self.target.corpus()
        self._fresh: Iterator[bytes] = iter(list(self.pool))

    def run(self, count: int) -> None:
        """The corpus first, then `count` inputs in all."""
        for _ in range(count):
            data = next(self._fresh, None)
            self.try_one(mutate(self._chance, self._chance.choice(self.pool), self.pool) if data is None else data)

    def try_one(self, data: bytes) -> None:
        self.inputs += 1
        self.before(data)
        try:
            outcome = self._run(data)
        except (Exception, Hang) as error:
            what = f"{type(error).__name__}: {error}"[:300]
            if len(self.defects) < 20:
                self.defects.append(Defect(self.target.name, data, what))
            return
        if outcome not in self.outcomes and len(self.outcomes) < MOST_OUTCOMES:
            self.outcomes[outcome] = data
            self.pool.append(data)

    def _run(self, data: bytes) -> str:
        """The outcome; raises Slow when it takes too long every time."""
        least_s = HANG_S
        for _ in range(TRIES):
            began_s = time.thread_time()
            with _alarm():
                outcome = self.target.run(data)
            least_s = min(least_s, time.thread_time() - began_s)
            if least_s < SLOW_S:
                break
        else:
            raise Slow(f"{least_s * 1e3:.0f} ms of processor time, {SLOW_S * 1e3:.0f} are allowed")
        self.slowest_s = max(self.slowest_s, least_s)
        return outcome


@contextmanager
def _alarm() -> Iterator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        raise Hang(f"longer than {HANG_S:g} s")

    signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, HANG_S)  # not by the clock: another program may have the processor
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
