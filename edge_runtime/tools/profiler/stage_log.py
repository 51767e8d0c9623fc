"""Each round trip with the time of every stage in it, not only their distributions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from edge_runtime.timing import SERVER_STAGES, STAGES, StageTimes

PARTS = tuple(stage for stage in STAGES if stage != "actuate")  # of a round trip; actuate comes after the merge
_LAST = SERVER_STAGES[-1]  # the planner records the server's stages after all others


@dataclass(frozen=True)
class Trip:
    """One round trip: from the tick that read the state to the merge; seconds."""

    at_s: float  # monotonic, at the merge
    round_trip_s: float
    parts_s: dict[str, float]

    @property
    def other_s(self) -> float:
        """What no stage accounts for."""
        return max(self.round_trip_s - sum(self.parts_s.values()), 0.0)


class StageLog(StageTimes):
    """Keeps the trips of one stream, where one observation is in flight at a time. `cost_s` is what that took."""

    def __init__(self) -> None:
        super().__init__()
        self.trips: list[Trip] = []
        self.cost_s = 0.0
        self._parts: dict[str, float] = {}
        self._round_trip_s = 0.0
        self._network_s = 0.0  # of the last ping: not every observation has one

    def record(self, stage: str, seconds: float) -> None:
        began_s = time.perf_counter()
        super().record(stage, seconds)
        if stage == "capture":
            self._parts = {stage: seconds}
        elif stage == "network":
            self._network_s = seconds
        elif stage == "round_trip":
            self._round_trip_s = seconds
        elif stage != "actuate":
            self._parts[stage] = seconds
            if stage == _LAST and "capture" in self._parts:
                parts = {part: self._parts.get(part, 0.0) for part in PARTS}
                left_s = max(self._round_trip_s - sum(parts.values()), 0.0)  # the ping may have been slower than this
                parts["network"] = min(self._network_s, left_s)
                self.trips.append(Trip(time.monotonic(), self._round_trip_s, parts))
                self._parts = {}
        self.cost_s += time.perf_counter() - began_s

    @property
    def warm(self) -> Sequence[Trip]:
        """All but the first, which pays for connections, caches and clocks that the others find warm."""
        return self.trips[1:]
