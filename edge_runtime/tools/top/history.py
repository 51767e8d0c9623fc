"""The last readings, and what changed between them."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

from edge_runtime.tools.top.reading import Reading

KEPT = 240


class History:
    """Series are oldest first. `trouble` is why the newest reading is missing; empty when it is not."""

    def __init__(self) -> None:
        self._readings: deque[Reading] = deque(maxlen=KEPT)
        self.trouble = ""

    def add(self, reading: Reading) -> None:
        self._readings.append(reading)
        self.trouble = ""

    @property
    def newest(self) -> Reading:
        return self._readings[-1]

    def values(self, name: str) -> list[float]:
        """A gauge over time."""
        return [reading[name] for reading in self._readings]

    def rates(self, name: str) -> list[float]:
        """How fast a count rises, per second, between neighbours; 0 where it started anew."""
        return [
            max(after[name] - before[name], 0.0) / max(after.at_s - before.at_s, 1e-6)
            for before, after in self._neighbours()
        ]

    def means(self, name: str) -> list[float]:
        """The mean of what a histogram took in between neighbours, as it was before where there was nothing."""
        means = [0.0]
        for before, after in self._neighbours():
            count = after[f"{name}_count"] - before[f"{name}_count"]
            means.append((after[f"{name}_sum"] - before[f"{name}_sum"]) / count if count > 0 else means[-1])
        return means[1:]

    def _neighbours(self) -> list[tuple[Reading, Reading]]:
        return list(pairwise(self._readings))
