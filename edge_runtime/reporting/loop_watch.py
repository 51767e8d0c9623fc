"""Follows the loop's records in a thread of its own: the state, the listeners, and then the planner."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence

from edge_runtime._realtime import Record
from edge_runtime.program import output
from edge_runtime.program.notify import Notifier
from edge_runtime.reporting.run_stats import RecordListener, RunStats
from edge_runtime.wire.messages import Joint

log = logging.getLogger(__name__)

PRINT_GOALS_EVERY_S = 0.5
_LOOK_S = 0.5  # at the latest, whether the run has ended


def watch_loop(stats: RunStats, listeners: Sequence[RecordListener], systemd: Notifier, stop: threading.Event) -> None:
    """Show each record of the run to all who follow it, until `stop`; records that come in between are passed over."""
    seen = 0
    while not stop.is_set():
        record = stats.loop.wait(seen, _LOOK_S)
        if record is None:
            continue
        if seen == 0:
            log.info("loop: %s", stats.loop.realtime_outcome)
        seen = record.sequence
        systemd.alive()
        stats.robot.watch()
        if record.paused:
            stats.state.rest(time.monotonic())
        else:
            stats.state.observe(
                time.monotonic(),
                connected=stats.planner.is_connected,
                level=record.level,
                executes=record.outcome == "picked",
            )
            for listener in listeners:
                listener.see(record, stats)
        stats.planner.observe(record)


class GoalPrinter:
    """A dry run's listener: prints twice a second where the arm would be sent."""

    def __init__(self) -> None:
        self._print_at_s = 0.0

    def see(self, record: Record, stats: RunStats) -> None:
        now_s = time.monotonic()
        if record.level > 0 and now_s >= self._print_at_s:
            self._print_at_s = now_s + PRINT_GOALS_EVERY_S
            output.say(_goals(stats.robot.joints, record.goal))


def _goals(joints: Sequence[Joint], goals: Iterable[float]) -> str:
    """`goal shoulder_pan 12.3, …, gripper 50.0`, in joint units, for a person who compares them with the arm."""
    named = (f"{joint.name.removesuffix('.pos')} {goal:.1f}" for joint, goal in zip(joints, goals, strict=True))
    return f"goal {', '.join(named)}"
