"""What each rule for `chunk_size_threshold` costs, on simulated round trips: chunks that come too late, and requests.

The rules: `auto` (the runtime's own classes), fixed parts of the chunk, the largest of the last ten and one tick, and
an oracle that knows the 99 % quantile of what is coming. The queue is the one of `docs/threshold.md`: asked at `rows`
left, one request in flight, a chunk of n actions at f per second.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from edge_runtime.planning.threshold import AutoThreshold, part_of
from edge_runtime.timing import LatencyWindow
from scripts.rig.bench import reach

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

RECENT = 10
WARM_UP = 100
AFTER_A_RISE = 10  # chunks in which a rise may be to blame
_FLOORED = "auto, floor"
FIXED = (0.3, 0.5, 0.7, 0.9)


@dataclass(frozen=True)
class Simulation:
    """`chunks` of each kind of latency, of `chunk_size` actions at `fps`; `risk` is what `auto` may take."""

    chunks: int
    chunk_size: int = 50
    fps: float = 30.0
    risk: float = 0.01
    auto_floor: float = 0.0  # above 0: a rule of its own beside `auto`, which has none
    seed: int = 0


@dataclass(frozen=True)
class Latencies:
    """Round trips in seconds, and for each the level it varies around; `independent` if that never changes."""

    seconds: Floats
    level: Floats

    @property
    def independent(self) -> bool:
        return bool((self.level == self.level[0]).all())

    @property
    def rises(self) -> Rows:
        """The first chunk of each higher level."""
        return np.flatnonzero(np.diff(self.level) > 0) + 1


@dataclass(frozen=True)
class Outcome:
    """How a rule did: which chunks came too late, at what level it asked, and the requests per second."""

    starved: npt.NDArray[np.bool_]
    level: Rows
    requests_hz: float


def latencies(count: int, random: np.random.Generator) -> dict[str, Latencies]:
    """Kind -> `count` round trips, with which one would plan a deployment: a few hundred milliseconds."""

    def around(level: Floats, spread: float) -> Latencies:
        return Latencies(level * np.exp(spread * random.standard_normal(count)), level)

    def single(seconds: Floats) -> Latencies:
        return Latencies(seconds, np.zeros(count))

    slow = random.random(count) < 0.05
    return {
        "constant": single(np.full(count, 0.3)),
        "lognormal": single(around(np.full(count, 0.15), 0.5).seconds),
        "bimodal": single(around(np.where(slow, 0.45, 0.15), 0.1).seconds),
        "bursty": around(np.where(_bursts(count, random, every=200, length=20), 0.5, 0.12), 0.15),
        "stepped": around(np.repeat(_steps(count // 500 + 1, random), 500)[:count], 0.1),
    }


def _bursts(count: int, random: np.random.Generator, every: int, length: int) -> npt.NDArray[np.bool_]:
    """A two-state chain: calm for `every` chunks on average, then a burst of `length`."""
    stays = random.geometric([1 / every, 1 / length], (count // every + 100, 2)).ravel()
    return np.repeat(np.arange(stays.size) % 2 == 1, stays)[:count]


def _steps(count: int, random: np.random.Generator) -> Floats:
    """Levels in seconds, each different from the one before."""
    choices = np.array([0.1, 0.2, 0.4, 0.6])
    index = np.cumsum(random.integers(1, len(choices), count)) % len(choices)
    return choices[index]


def rows_of_auto(config: Simulation, seconds: Floats, floor: float = 0.0) -> Rows:
    """Before each chunk, what the runtime's own rule says from those before it, with `floor` a part of a chunk."""
    window = LatencyWindow.for_risk(config.risk, slack_s=1 / config.fps)
    threshold = AutoThreshold(window, config.fps, config.chunk_size, floor=floor)
    rows = np.empty(len(seconds), np.int64)
    for index, each in enumerate(seconds.tolist()):
        rows[index] = threshold.rows
        window.record(each)
    return rows


def rows_of_recent_maximum(config: Simulation, seconds: Floats) -> Rows:
    before = np.concatenate([np.full(RECENT, seconds[0]), seconds[:-1]])
    largest = sliding_window_view(before, RECENT)[: len(seconds)].max(axis=1)
    return np.asarray(np.ceil(largest * config.fps).astype(np.int64) + 1)


def rows_of_oracle(config: Simulation, trips: Latencies) -> Rows:
    """The least that keeps each level's own risk."""
    rows = np.empty(len(trips.seconds), np.int64)
    for level in np.unique(trips.level):
        here = trips.level == level
        rows[here] = np.quantile(np.ceil(trips.seconds[here] * config.fps), 1 - config.risk, method="inverted_cdf")
    return rows


def run(config: Simulation, seconds: Floats, rows: Rows) -> Outcome:
    """Play the queue. Times are whole ticks; a chunk is merged before the tick that first could execute it."""
    trip = np.ceil(seconds * config.fps).astype(np.int64)
    wanted = np.minimum(rows, config.chunk_size)
    level, executed = wanted, np.minimum(trip, wanted)
    while True:  # the level is lower where the last chunk came so late that it was below at once; that may go on
        left = config.chunk_size - np.concatenate([[0], executed[:-1]])
        now = np.minimum(wanted, left)
        if (now == level).all():
            break
        level, executed = now, np.minimum(trip, now)
    ticks = trip + left - level  # from one merge to the next: drain to the level, then the round trip
    return Outcome(trip > level, level, config.fps * len(seconds) / float(ticks.sum()))


def worst_after_a_rise(trips: Latencies, outcome: Outcome) -> int:
    """The most chunks that were too late among the first ten of a higher level."""
    steps = np.append(np.flatnonzero(np.diff(trips.level)) + 1, len(trips.level))
    ends = np.minimum(steps[np.searchsorted(steps, trips.rises, "right")], trips.rises + AFTER_A_RISE)
    late = np.concatenate([[0], np.cumsum(outcome.starved)])
    return int((late[ends] - late[trips.rises]).max(initial=0))


def late_at_the_start(config: Simulation, seconds: Floats, runs: int = 2000) -> float:
    """Of the first ten chunks after the cold one, how many come too late, on average over fresh starts."""
    starts = seconds[: runs * (RECENT + 1)].reshape(-1, RECENT + 1)
    late = [np.ceil(start * config.fps) > rows_of_auto(config, start) for start in starts]
    return float(np.sum([each[1:].sum() for each in late]) / len(starts))


def rules(config: Simulation, trips: Latencies) -> dict[str, Callable[[], Rows]]:
    fixed = {
        f"fixed {part:g}": lambda part=part: np.full(len(trips.seconds), part_of(part, config.chunk_size))
        for part in FIXED
    }
    return {
        "auto": lambda: rows_of_auto(config, trips.seconds),
        **({_FLOORED: lambda: rows_of_auto(config, trips.seconds, config.auto_floor)} if config.auto_floor else {}),
        **fixed,
        "recent max": lambda: rows_of_recent_maximum(config, trips.seconds),
        "oracle": lambda: rows_of_oracle(config, trips),
    }


def play(config: Simulation) -> None:
    """Print the table, and a line for each reach."""
    print(f"{config.chunks} chunks of {config.chunk_size} at {config.fps:g} Hz, risk {config.risk:g}")
    print(f"{'latency':<11}{'rule':<12}{'starved':>10}{'after a rise':>14}{'requests/s':>12}{'mean rows':>11}")
    for kind, trips in latencies(config.chunks, np.random.default_rng(config.seed)).items():
        outcomes = {name: run(config, trips.seconds, rule()) for name, rule in rules(config, trips).items()}
        for name, outcome in outcomes.items():
            after = "-" if trips.independent else str(worst_after_a_rise(trips, outcome))
            print(
                f"{kind:<11}{name:<12}{outcome.starved[WARM_UP:].mean():>10.4%}{after:>14}"
                f"{outcome.requests_hz:>12.3f}{outcome.level.mean():>11.1f}",
                flush=True,
            )
        _judge(config, kind, trips, outcomes)


def _judge(config: Simulation, kind: str, trips: Latencies, outcomes: dict[str, Outcome]) -> None:
    auto = outcomes["auto"]
    if _FLOORED in outcomes:
        starved, without = int(outcomes[_FLOORED].starved.sum()), int(auto.starved.sum())
        reach(f"auto, {kind}: {starved} starved with the floor (reach {without}, without)", starved <= without)
    if not trips.independent:
        worst = worst_after_a_rise(trips, auto)
        reach(
            f"auto, {kind}: at most {worst} starved of the {AFTER_A_RISE} chunks after each of {len(trips.rises)} rises"
            " (reach 2)",
            worst <= 2,
        )
        return
    share = auto.starved[WARM_UP:].mean()
    most = config.risk + 3 * math.sqrt(config.risk * (1 - config.risk) / (config.chunks - WARM_UP))
    ratio = auto.requests_hz / outcomes["oracle"].requests_hz
    reach(
        f"auto, {kind}: {share:.4%} starved (reach {most:.4%}), {ratio:.3f} of the oracle's requests (reach 1.2); at a "
        f"start {late_at_the_start(config, trips.seconds):.2f} of ten",
        bool(share <= most and ratio <= 1.2),
    )
