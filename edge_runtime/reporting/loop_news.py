"""Says once what begins and what ends in the loop: joints far from their goal, readings and actions that cannot be."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from edge_runtime._realtime import ActuatorLoop, Record
from edge_runtime.reporting.run_stats import RunStats

log = logging.getLogger(__name__)

MISSED_RECORDS = 10  # by a thread that was held up; while the loop is paused none is shown
QUIET_RECORDS = 300  # without a reading that cannot be: the next one is news again


class LoopNews:
    """A listener that is shown each record of `loop`; `names` are those of its joints."""

    def __init__(self, loop: ActuatorLoop, names: Sequence[str]) -> None:
        self._loop = loop
        self._names = names
        self._behind: tuple[int, ...] = ()
        self._is_finite = True
        self._impossible = loop.impossible_readings
        self._quiet_until = 0
        self._seen = 0

    def see(self, record: Record, stats: RunStats) -> None:
        self._see_behind(record)
        if record.outcome in ("picked", "hole") and (record.outcome == "picked") != self._is_finite:
            self._is_finite = not self._is_finite
            if self._is_finite:
                log.info("the policy's actions are finite again")
            else:
                log.error("the policy's actions are not finite numbers: the arm holds its last goal")
        self._see_impossible(record)

    def _see_impossible(self, record: Record) -> None:
        """An arm that was paused may have been put elsewhere meanwhile: that is no news."""
        impossible, paused = self._loop.impossible_readings, record.sequence > self._seen + MISSED_RECORDS
        self._seen = record.sequence
        if impossible != self._impossible:
            if record.sequence >= self._quiet_until and not paused:
                told = zip(self._names, self._impossible, impossible, strict=True)
                joints = ", ".join(name for name, before, now in told if now > before)
                log.warning("%s cannot be where it says it is; what cannot be is not believed", joints)
            self._impossible, self._quiet_until = impossible, record.sequence + QUIET_RECORDS

    def _see_behind(self, record: Record) -> None:
        before, self._behind = self._behind, self._loop.behind
        for joint in sorted({*self._behind} - {*before}):
            log.warning(
                "%s does not follow: it is at %.1f, its goal at %.1f",
                self._names[joint],
                record.positions[joint],
                record.goal[joint],
            )
        for joint in sorted({*before} - {*self._behind}):
            log.info("%s follows again", self._names[joint])
