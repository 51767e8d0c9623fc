"""What a profile has found: the setting, every round trip, the loop's counts, and what follows from them in numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from edge_runtime.config import StartConfig
from edge_runtime.planning.threshold import MARGIN_ROWS, AutoThreshold
from edge_runtime.timing import EARLY_SAMPLES, LatencyWindow
from edge_runtime.tools.profiler.stage_log import PARTS, Trip

GROUPS = {
    "looking": ("capture",),
    "sending": ("encode", "network", "receive"),
    "waiting": ("admit", "wait"),
    "the policy": ("prepare", "infer", "finish"),
    "the delay asked for": ("inject",),
    "merging": ("merge",),
}
ENGINE = ("prepare", "infer", "inject")  # while these last, the server's engine is busy
MOST_FPS = 1000.0  # of StartConfig
LEAST_SENDING_S = 0.005  # a shorter time does not tell a link's rate


@dataclass(frozen=True)
class Picture:
    """One camera's frame as the policy takes it, in bytes: raw, and as JPEG of the default quality."""

    camera: str
    height: int
    width: int
    jpeg_bytes: int

    @property
    def raw_bytes(self) -> int:
        return self.height * self.width * 3


@dataclass(frozen=True)
class Setting:
    """What was profiled."""

    server: str
    policy: str
    robot: str
    fps: float
    control_hz: float
    rows: int  # of a chunk
    threshold: str
    jpeg_quality: int
    idle_gap_ms: float = 0.0
    pictures: tuple[Picture, ...] = ()


@dataclass(frozen=True)
class Distribution:
    """Numbers of a sample, exact; seconds."""

    n: int
    mean: float
    p50: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, sample: Sequence[float]) -> Distribution:
        ordered = sorted(sample)
        if not ordered:
            return cls(0, 0.0, 0.0, 0.0, 0.0, 0.0)

        def at(fraction: float) -> float:
            return ordered[max(math.ceil(fraction * len(ordered)) - 1, 0)]

        return cls(len(ordered), fmean(ordered), at(0.5), at(0.95), at(0.99), ordered[-1])


@dataclass(frozen=True)
class Findings:
    """`report` is the run's stats; `levels` (seconds, rows) the queue at each timestep, from the first chunk on."""

    setting: Setting
    cold: Trip
    warm: Sequence[Trip]
    report: Mapping[str, Any]
    levels: Sequence[tuple[float, int]] = ()
    lateness: Sequence[tuple[float, int]] = ()  # (up to seconds, ticks)
    cost_s: float = 0.0  # of the profiler itself

    @cached_property
    def stages(self) -> dict[str, Distribution]:
        """Warm round trips: each part, `other`, and `round_trip`."""
        found = {part: Distribution.of([trip.parts_s[part] for trip in self.warm]) for part in PARTS}
        found["other"] = Distribution.of([trip.other_s for trip in self.warm])
        found["round_trip"] = Distribution.of([trip.round_trip_s for trip in self.warm])
        return found

    @cached_property
    def groups(self) -> dict[str, float]:
        """Mean seconds of a warm round trip by what they are spent on."""
        groups = {name: sum(self.stages[part].mean for part in parts) for name, parts in GROUPS.items()}
        return groups | {"other": self.stages["other"].mean}

    @property
    def bound_by(self) -> str:
        """The group that takes most of a round trip."""
        return max(self.groups, key=lambda name: self.groups[name])

    @cached_property
    def quantile_s(self) -> float:
        """Q(L), as the runtime takes it."""
        window = LatencyWindow(slack_s=1 / self.setting.fps)
        for trip in (self.cold, *self.warm):
            window.record(trip.round_trip_s)
        return window.quantile()

    @property
    def safe_rows(self) -> int:
        """g* in rows; more than a chunk has if no threshold is safe."""
        return math.ceil(self.quantile_s * self.setting.fps) + MARGIN_ROWS

    def auto_rows(self, *, filtered: bool) -> int:
        """Where chunk_size_threshold=auto asks, with the filter on or off, once it knows round trips like these."""
        window = LatencyWindow()
        for _ in range(EARLY_SAMPLES + 1):  # the first is taken for a cold one
            window.record(self.quantile_s)
        return AutoThreshold(window, self.setting.fps, self.setting.rows, filtered, StartConfig.auto_floor).rows

    @property
    def least_chunk(self) -> int:
        """Rows with which the queue never runs dry at this fps.

        A chunk is merged with Q·fps of its rows executed, and what is left must last for the next round trip.
        """
        return 2 * math.ceil(self.quantile_s * self.setting.fps) + MARGIN_ROWS

    @property
    def most_fps(self) -> float:
        """At which this chunk lasts for two round trips; no more than the loop can do."""
        return min((self.setting.rows - MARGIN_ROWS) / (2 * self.quantile_s), MOST_FPS)

    @property
    def fits(self) -> bool:
        return self.least_chunk <= self.setting.rows

    @property
    def chunk_every_s(self) -> float:
        """How often a chunk is asked for at g*."""
        return max(self.quantile_s, (self.setting.rows - self.safe_rows) / self.setting.fps)

    @property
    def engine_s(self) -> float:
        """For how long one chunk keeps the engine busy."""
        return sum(self.stages[part].mean for part in ENGINE)

    @property
    def robots(self) -> int:
        """How many of this robot the engine can serve, one after the other."""
        return math.floor(self.chunk_every_s / self.engine_s) if self.engine_s > 0 else 0

    @property
    def observation_bytes(self) -> float:
        traffic = self.report["traffic"]
        return float(traffic["observation_bytes"] / max(traffic["observations"], 1))

    @property
    def chunk_bytes(self) -> float:
        traffic = self.report["traffic"]
        return float(traffic["chunk_bytes"] / max(traffic["chunks"], 1))

    @property
    def link_bytes_s(self) -> float:
        """The rate at which observations arrive; infinite where they are too small, or too fast, to tell."""
        receive_s = self.stages["receive"].p50
        return self.observation_bytes / receive_s if receive_s >= LEAST_SENDING_S else math.inf

    @property
    def frame_bytes(self) -> int:
        """Of all cameras, as they are sent, by the pictures."""
        return sum(
            picture.jpeg_bytes if self.setting.jpeg_quality else picture.raw_bytes for picture in self.setting.pictures
        )

    @property
    def cost_share(self) -> float:
        """The profiler's own time as a part of the loop's period."""
        return self.cost_s / max(float(self.report["duration_s"]), 1e-9)
