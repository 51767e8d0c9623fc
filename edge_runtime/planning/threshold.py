"""When to ask for the next chunk: at a level of the queue that was given, or at one that never runs it dry.

The queue holds `rows` when an observation is sent and loses one a tick; the chunk is merged L seconds later. So it
never runs dry if rows >= ceil(L * fps), and the smallest safe threshold is g* = Q(L) * fps / chunk for a high quantile
Q of L. Asking earlier than that acts on newer observations, so `auto` does not ask later than at a floor, unless the
server is overloaded. `docs/threshold.md` has the rule, its proof and its limits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from edge_runtime.timing import LatencyWindow

MARGIN_ROWS = 1  # the observer may see the level one tick late

# With the filter on, an observation should have the time to be skipped and followed by another before one must go.
FILTER_PART = 0.25
FILTER_MOST = 0.9


class Threshold(Protocol):
    """The planner asks for a chunk when the queue holds no more than `rows`."""

    @property
    def rows(self) -> int: ...


@dataclass(frozen=True)
class FixedThreshold:
    """A level that was given."""

    rows: int


@dataclass(frozen=True)
class AutoThreshold:
    """g*, followed as `latency` is; with the filter on min(0.9, g* + 0.25), but never below g*, nor below `floor`.

    `chunk` is the number of rows asked for, at `fps` a second; `floor` a part of them, which does not count while the
    server is `overloaded`.
    """

    latency: LatencyWindow
    fps: float
    chunk: int
    filtered: bool = False
    floor: float = 0.0
    overloaded: Callable[[], bool] = lambda: False

    @property
    def rows(self) -> int:
        latest = self._latest
        return latest if self.overloaded() else max(latest, part_of(self.floor, self.chunk))

    @property
    def _latest(self) -> int:
        """The level below which the queue may run dry."""
        safe = min(math.ceil(self.latency.bound() * self.fps) + MARGIN_ROWS, self.chunk)
        if not self.filtered:
            return safe
        return max(safe, min(part_of(FILTER_MOST, self.chunk), safe + part_of(FILTER_PART, self.chunk)))


def part_of(part: float, rows: int) -> int:
    """floor(part * rows), where 0.2 * 50 is 10 although the product of their doubles is less."""
    return math.floor(part * rows + 1e-9)
