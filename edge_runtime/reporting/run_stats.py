"""What a run has done so far: one report, for the summary, the metrics port, the status line and the profiler."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from edge_runtime._realtime import ActuatorLoop, Record
from edge_runtime.cameras import Camera
from edge_runtime.config import StartConfig
from edge_runtime.link.stream import PolicyStream
from edge_runtime.planning.planner import Planner
from edge_runtime.reporting.fault_reporter import FaultReporter
from edge_runtime.reporting.state import RuntimeState
from edge_runtime.reporting.summary import Report
from edge_runtime.robots import Robot
from edge_runtime.wire.messages import Hello


class RecordListener(Protocol):
    """Is shown each record of the running loop, in the thread that follows the loop, before the planner looks."""

    def see(self, record: Record, stats: RunStats) -> None: ...


@dataclass
class RunStats:
    """The parts of a run that count something; asking costs nothing in the loop and may be done from any thread."""

    config: StartConfig
    hello: Hello
    cameras: Mapping[str, Camera]  # by the policy's names
    robot: Robot
    loop: ActuatorLoop
    planner: Planner
    stream: PolicyStream
    reporter: FaultReporter
    state: RuntimeState
    started_s: float  # monotonic
    episode: int = 0
    episodes: list[dict[str, Any]] = field(default_factory=list)  # their outcomes
    error: str | None = None

    def now(self) -> Report:
        """What changes from moment to moment."""
        return {
            "state": self.state.current,
            "queue_level": self.loop.record.level,
            "threshold_rows": self.planner.threshold.rows,
            "round_trip_s": self.planner.latency.last,
            "control_hz": self.config.fps * self.config.substeps,
            "jpeg_quality": self.stream.uplink.quality,
        }

    def report(self) -> Report:
        """Everything since the start; durations in seconds."""
        counts, loop = self.planner.counts, self.loop
        return {
            "duration_s": time.monotonic() - self.started_s,
            "mode": self.config.mode,
            "control_hz": self.config.fps * self.config.substeps,
            "realtime": loop.realtime_outcome,
            "loop": loop.counters(),
            "lateness_s": loop.lateness().summary().as_dict(),
            "action_age_s": loop.action_age().summary().as_dict(),
            "observations": {
                "sent": counts["sent"],
                "must_go": counts["must_go"],
                "skipped": _with_prefix(counts, "skipped_"),
                "unsent": _with_prefix(counts, "unsent_"),
                "lost": counts["lost"],
                "failures": counts["failures"],
            },
            "threshold": {"setting": self.config.chunk_size_threshold, "rows": self.planner.threshold.rows},
            "chunks": {kind: counts[f"chunks_{kind}"] for kind in ("merged", "stale", "foreign")},
            "reconnects": self.stream.reconnects,
            "jpeg_quality": self.stream.uplink.quality,
            "traffic": self.stream.traffic.as_dict(),
            "cameras": {
                name: {"frames": camera.frames, "failures": camera.failures} for name, camera in self.cameras.items()
            },
            "stages_s": {stage: s.as_dict() for stage, s in self.planner.stages.summaries().items()},
            "bus_time_s": loop.bus_time().summary().as_dict(),
            "bus": self.robot.report(),
            "states": self.state.changes,
            "faults": [*self.reporter.faults],
            "episodes": self.episodes,
            "error": self.error,
        }


def _with_prefix(counts: Mapping[str, int], prefix: str) -> dict[str, int]:
    taken = list(counts.items())  # at once: other threads count on
    return {name.removeprefix(prefix): n for name, n in taken if name.startswith(prefix) and n}
