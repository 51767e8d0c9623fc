"""Who judges a soak: from the loop's records when the arm was at work, from the bus's log what it was told."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from edge_runtime._realtime import Record
from edge_runtime.motors.calibration import JointCalibration
from edge_runtime.virtual_arm.calibration import CALIBRATION

if TYPE_CHECKING:
    from edge_runtime.reporting.run_stats import RunStats  # gRPC: not before the supervisor

TICKS_PER_UNIT = dict.fromkeys(range(1, 6), 4095 / 360) | {6: (3186 - 1934) / 100}


class Watch:
    """An listener: knows the stats, and when the arm last had nothing to execute."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.stats: RunStats | None = None
        self._idle_s = 0.0

    def see(self, record: Record, stats: RunStats) -> None:
        if record.level == 0:
            self._idle_s = record.time_ns / 1e9
        self.stats = stats
        if stats.state.current == "running":
            self.begun.set()

    def idle_until_s(self) -> float:
        """Monotonic: since then it has been running, with a stream and rows to execute; now if it is not."""
        assert self.stats is not None
        state = self.stats.state
        if state.current != "running":
            return time.monotonic()
        return max(self._idle_s, state.changes[-1][0] + self.stats.started_s)


class BusJudge:
    """Reads the bus's log and counts goals outside the calibrated range and steps beyond `max_speed`."""

    def __init__(self, max_speed: float, fps: float) -> None:
        self._step = max_speed / fps + 0.1  # the rounding to ticks
        self._seen_s = 0.0
        self._goals: dict[int, int] = {}
        self.judged = 0
        self.violations: list[str] = []

    def judge(self, log: list[dict[str, Any]]) -> None:
        """What came since the last time; the log holds some eight seconds."""
        if log and log[0]["time_s"] > self._seen_s:
            self._goals = {}  # there is a gap
        fresh = [entry for entry in log if entry["time_s"] > self._seen_s]
        asked = [entry for entry in fresh if entry["instruction"] != "STATUS"]
        for entry, following in zip(asked, [*asked[1:], None], strict=True):
            if entry["instruction"] == "SYNC_WRITE" and "Goal_Position" in entry["registers"]:
                goals = {int(servo): values["Goal_Position"] for servo, values in entry["values"].items()}
                if following and (following["instruction"], following["registers"]) == ("SYNC_READ", ["Goal_Position"]):
                    self._goals = goals  # the safe start: the present position, read back
                else:
                    self._judge(goals)
        self._seen_s = fresh[-1]["time_s"] if fresh else self._seen_s

    def _judge(self, goals: dict[int, int]) -> None:
        self.judged += 1
        for entry in CALIBRATION.values():
            if entry.id not in goals:  # a start that tells one servo again
                continue
            goal, before = goals[entry.id], self._goals.get(entry.id, goals[entry.id])
            if abs(goal - before) > self._step * TICKS_PER_UNIT[entry.id]:
                self.violations.append(f"servo {entry.id}: {before} -> {goal} in one tick")
            inside = entry.range_min <= goal <= entry.range_max
            if not inside and abs(goal - _middle(entry)) > abs(before - _middle(entry)):
                self.violations.append(f"servo {entry.id}: {goal} is outside {entry.range_min}..{entry.range_max}")
        self._goals = self._goals | goals


def _middle(entry: JointCalibration) -> float:
    return (entry.range_min + entry.range_max) / 2
