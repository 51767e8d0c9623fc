"""How long an answer takes: latency processes, the same weather for every method that meets the same seed."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from edge_runtime.errors import ConfigError

Times = npt.NDArray[np.float64]
Process = Callable[[np.random.Generator, int, float], Times]

FPS = 30


def _constant(random: np.random.Generator, ticks: int, ms: float) -> Times:
    return np.full(ticks, ms / 1e3)


def _lognormal(random: np.random.Generator, ticks: int, ms: float) -> Times:
    """Independent, with mean `ms` and a tail: one in a hundred is over 3.4 times as long."""
    sigma = 0.6
    return random.lognormal(math.log(ms / 1e3) - sigma**2 / 2, sigma, ticks)


def _bursty(random: np.random.Generator, ticks: int, ms: float) -> Times:
    """100 ms, and `ms` during bursts of half a second on average that come every two seconds."""
    ends, begins = 1 / (0.5 * FPS), 1 / (1.5 * FPS)
    toss, burst = random.random(ticks), False
    times = np.empty(ticks)
    for tick in range(ticks):
        burst = toss[tick] >= ends if burst else toss[tick] < begins
        times[tick] = ms / 1e3 if burst else 0.1
    return times


def _stepped(random: np.random.Generator, ticks: int, ms: float) -> Times:
    """100 ms, and for two seconds from a time within the first two on `ms`."""
    times = np.full(ticks, 0.1)
    begin = int(random.integers(0, 2 * FPS))
    times[begin : begin + 2 * FPS] = ms / 1e3
    return times


def _dropouts(random: np.random.Generator, ticks: int, ms: float) -> Times:
    """`ms`, but one answer in seven never comes."""
    return np.where(random.random(ticks) < 1 / 7, math.inf, ms / 1e3)


PROCESSES: Mapping[str, Process] = {
    "constant": _constant,
    "lognormal": _lognormal,
    "bursty": _bursty,
    "stepped": _stepped,
    "dropouts": _dropouts,
}


def round_trips(name: str, seed: int, ticks: int) -> Times:
    """Seconds until the answer, by the tick at which the observation is sent; inf = the answer is lost.

    `name` is a process and its milliseconds: `lognormal-500`. Raises ConfigError.
    """
    process, dash, text = name.partition("-")
    if process not in PROCESSES or not dash or not text.isdigit() or int(text) > 10_000:
        raise ConfigError(f"links: {name!r} is not one of {', '.join(PROCESSES)} with milliseconds, as constant-300")
    random = np.random.default_rng([zlib.crc32(name.encode()), seed])
    return PROCESSES[process](random, ticks, float(text))
