"""Stage names, histograms and percentiles: where every number about time goes."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

STAGES = (
    "capture",  # newest frames and state -> observation
    "encode",  # observation -> messages, JPEG included
    "receive",  # server's clock: first piece to last
    "admit",  # checks and filter
    "wait",  # in the slot
    "prepare",  # the cleaning pipeline, JPEG decoding included
    "infer",  # the engine
    "inject",  # a delay that was asked for
    "finish",  # un-normalise, encode
    "network",  # there and back, of an empty ping on the same stream
    "merge",  # chunk -> ring
    "actuate",  # merge to the first tick that executes from it
)
SERVER_STAGES = ("receive", "admit", "wait", "prepare", "infer", "inject", "finish")

_SUB = 32  # buckets per octave: a bucket is at most 3.1 % wide
_OCTAVES = 40  # 1 ns .. 18 minutes
BUCKETS = _SUB * _OCTAVES

EARLY_SAMPLES = 10  # until so many latencies are known, the largest says too little
EARLY_FACTOR = 1.5


def bucket(ns: int) -> int:
    """The histogram bucket of a duration in nanoseconds: `_SUB` linear steps in each power of two."""
    if ns < _SUB:
        return max(ns, 0)
    octave = ns.bit_length() - 6  # so that ns >> octave lies in 32..63
    return min((octave + 1) * _SUB + (ns >> octave) - _SUB, BUCKETS - 1)


def bucket_floor(index: int) -> int:
    """The least duration in nanoseconds that falls into bucket `index`."""
    if index < _SUB:
        return index
    octave, step = divmod(index, _SUB)
    return (step + _SUB) << (octave - 1)


@dataclass(frozen=True)
class Summary:
    """A distribution in six numbers; seconds."""

    n: int
    mean: float
    p50: float
    p95: float
    p99: float
    max: float

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


LEAST_S = 5e-6  # less is 0.00 ms on every page: a stage that took no time

PERCENTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


def can_tell(name: str, n: int) -> bool:
    """Whether `n` samples have a percentile of their own by this name, and not just their largest one again."""
    return n * (1 - PERCENTILES.get(name, 0.0)) > 1 - 1e-9


class Histogram:
    """Counts durations in buckets at most 3.1 % wide; safe to record into from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = [0] * BUCKETS
        self._n = 0
        self._sum_ns = 0
        self._max_ns = 0

    @classmethod
    def from_counts(cls, counts: Sequence[int], sum_ns: int, max_ns: int) -> Histogram:
        """A histogram counted elsewhere (the loop's), in the buckets of `bucket`."""
        histogram = cls()
        histogram._counts = list(counts)
        histogram._n = sum(counts)
        histogram._sum_ns = sum_ns
        histogram._max_ns = max_ns
        return histogram

    def record(self, seconds: float) -> None:
        ns = max(int(seconds * 1e9), 0)
        index = bucket(ns)
        with self._lock:
            self._counts[index] += 1
            self._n += 1
            self._sum_ns += ns
            self._max_ns = max(self._max_ns, ns)

    @property
    def n(self) -> int:
        return self._n

    @property
    def counts(self) -> list[int]:
        with self._lock:
            return list(self._counts)

    @property
    def sum_s(self) -> float:
        return self._sum_ns / 1e9

    def cumulative(self, bounds_s: Sequence[float]) -> list[int]:
        """How many samples do not exceed each of the ascending `bounds_s`, to the width of a bucket."""
        counts = self.counts
        found, below, index = [], 0, 0
        for bound_s in bounds_s:
            end = bucket(int(bound_s * 1e9)) + 1
            below += sum(counts[index:end])
            found.append(below)
            index = max(index, end)
        return found

    def percentile(self, fraction: float) -> float:
        """The duration in seconds that `fraction` (0..1) of the samples do not exceed; 0 without samples."""
        with self._lock:
            rank = fraction * self._n
            seen = 0
            for index, count in enumerate(self._counts):
                seen += count
                if count and seen >= rank:
                    upper = bucket_floor(index + 1) if index + 1 < BUCKETS else self._max_ns
                    return min(upper, self._max_ns) / 1e9
            return 0.0

    def summary(self) -> Summary:
        return Summary(
            n=self._n,
            mean=self._sum_ns / self._n / 1e9 if self._n else 0.0,
            p50=self.percentile(0.50),
            p95=self.percentile(0.95),
            p99=self.percentile(0.99),
            max=self._max_ns / 1e9,
        )


class StageTimes:
    """One histogram for each stage that was ever recorded."""

    def __init__(self, stages: Iterable[str] = (*STAGES, "round_trip")) -> None:
        self._histograms = {stage: Histogram() for stage in stages}

    def record(self, stage: str, seconds: float) -> None:
        self._histograms[stage].record(seconds)

    @property
    def histograms(self) -> Mapping[str, Histogram]:
        return self._histograms

    def summaries(self) -> dict[str, Summary]:
        """Stage -> summary, in the order of the data's way, only what was recorded."""
        return {stage: h.summary() for stage, h in self._histograms.items() if h.n}


class LatencyWindow:
    """Q(L): the largest of the last `window` latencies, the first (cold) one left out; seconds.

    For independent latencies the next one exceeds it with probability 1 / (window + 1). `bound` is that, and 1.5 times
    as much while few are known: until the tenth, and again until the tenth after a rise, which is one that exceeded the
    bound by more than `slack_s`.
    """

    def __init__(self, window: int = 99, slack_s: float = 0.0) -> None:
        self._samples: deque[float] = deque(maxlen=window)
        self._slack_s = slack_s
        self._cold: float | None = None
        self._settled = 0  # samples since the start or the last rise, that one included

    @classmethod
    def for_risk(cls, risk: float, slack_s: float = 0.0) -> LatencyWindow:
        """The shortest window whose Q(L) the next of independent latencies exceeds with probability `risk` at most."""
        return cls(math.ceil(1 / risk - 1e-9) - 1, slack_s)

    def record(self, seconds: float) -> None:
        if self._cold is None:
            self._cold = seconds
            return
        rises = bool(self._samples) and seconds > self.bound() + self._slack_s
        self._settled = 1 if rises else self._settled + 1
        self._samples.append(seconds)

    @property
    def n(self) -> int:
        return len(self._samples)

    @property
    def last(self) -> float:
        """The newest in seconds; 0 before the first."""
        return self._samples[-1] if self._samples else self._cold or 0.0

    def quantile(self) -> float:
        """Q(L) in seconds; before the second sample the cold one, before the first 0."""
        if self._samples:
            return max(self._samples)
        return self._cold or 0.0

    def bound(self) -> float:
        """What the next latency is taken to stay below, in seconds; 0 before the first sample."""
        return self.quantile() * (EARLY_FACTOR if self._settled < EARLY_SAMPLES else 1.0)
