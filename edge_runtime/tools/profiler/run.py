"""Runs the robot's side with a pen in hand, shows that it goes on, and gives what it has written down."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping

import cv2

from edge_runtime._realtime import Record
from edge_runtime.acting.supervisor.client import Supervisor
from edge_runtime.cameras import Camera
from edge_runtime.config import StartConfig
from edge_runtime.errors import StreamError
from edge_runtime.link.uplink import BEST_QUALITY
from edge_runtime.reporting.run_stats import RunStats
from edge_runtime.runtime import Runtime
from edge_runtime.timing import Histogram, bucket_floor
from edge_runtime.tools.profiler.findings import Findings, Picture, Setting
from edge_runtime.tools.profiler.stage_log import StageLog
from edge_runtime.wire import messages
from edge_runtime.wire.frames import compress

SAY_EVERY_S = {True: 0.2, False: 5.0}  # on a terminal, elsewhere
LEAST_TRIPS = 3  # one of them cold


def profile(
    config: StartConfig, supervisor: Supervisor | None, *, chunks: int = 0, idle_gap_ms: float = 0.0
) -> Findings:
    """Run as `config` says, until its end or `chunks` round trips. Raises what ended the run before that."""
    stages, levels = StageLog(), _Levels()
    found: list[tuple[RunStats, list[Picture]]] = []
    progress = _Progress(stages, chunks, lambda: runtime.stop())
    runtime = Runtime(
        config,
        supervisor,
        listeners=(levels, progress),
        stages=stages,
        tell=lambda stats: found.append((stats, progress.pictures)),
        idle_gap_s=idle_gap_ms / 1e3,
    )
    runtime.run()
    progress.end()
    if not found or len(stages.trips) < LEAST_TRIPS:
        raise StreamError(f"{len(stages.trips)} round trips are too few to judge by: let it run longer (duration_s)")
    stats, pictures = found[0]
    first = next((index for index, (_, level) in enumerate(levels.rows) if level), 0)
    return Findings(
        setting=_setting(stats, pictures, idle_gap_ms),
        cold=stages.trips[0],
        warm=stages.warm,
        report=stats.report(),
        levels=levels.rows[first:],
        lateness=_counts(stats.loop.lateness()),
        cost_s=stages.cost_s + progress.cost_s,
    )


class _Levels:
    """Keeps the queue's level at each record: (seconds since the start, rows)."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, int]] = []

    def see(self, record: Record, stats: RunStats) -> None:
        self.rows.append((record.time_ns / 1e9 - stats.started_s, record.level))


class _Progress:
    """Looks at every record: shows progress, ends the run when there is enough, and keeps a frame of each camera."""

    def __init__(self, stages: StageLog, chunks: int, stop: Callable[[], None]) -> None:
        self._stages = stages
        self._chunks = chunks
        self._stop = stop
        self._live = sys.stderr.isatty()
        self._say_at_s = 0.0
        self.pictures: list[Picture] = []
        self.cost_s = 0.0

    def see(self, record: Record, stats: RunStats) -> None:
        began_s = time.perf_counter()
        if len(self.pictures) < len(stats.hello.cameras):
            self.pictures = _pictures(stats.hello, stats.cameras)
        if self._chunks and len(self._stages.trips) > self._chunks:  # one more: the cold one does not count
            self._stop()
        now_s = time.monotonic()
        if now_s >= self._say_at_s:
            self._say_at_s = now_s + SAY_EVERY_S[self._live]
            self._say(now_s - stats.started_s, record.level)
        self.cost_s += time.perf_counter() - began_s

    def _say(self, elapsed_s: float, level: int) -> None:
        trips = self._stages.trips
        last = f", the last {trips[-1].round_trip_s * 1e3:.0f} ms" if trips else ""
        line = f"profiling: {elapsed_s:.0f} s, {len(trips)} round trips{last}, {level} actions queued"
        self._write(f"\r{line:<78}" if self._live else f"{line}\n")

    def end(self) -> None:
        if self._live:
            self._write(f"\r{'':<78}\r")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a terminal that was closed
            print(text, end="", file=sys.stderr, flush=True)


def _pictures(hello: messages.Hello, cameras: Mapping[str, Camera]) -> list[Picture]:
    """What a frame of each camera is, in the shape in which it goes out; those that have none yet are left out."""
    pictures = []
    for camera in hello.cameras:
        newest = cameras[camera.name].latest()
        if newest is not None:
            pixels = newest.pixels
            if pixels.shape[:2] != (camera.height, camera.width):
                pixels = cv2.resize(pixels, (camera.width, camera.height))  # type: ignore[assignment]
            jpeg = compress(messages.Frame.raw(camera.name, pixels), BEST_QUALITY)
            pictures.append(Picture(camera.name, camera.height, camera.width, len(jpeg.data)))
    return pictures


def _setting(stats: RunStats, pictures: list[Picture], idle_gap_ms: float) -> Setting:
    config, hello = stats.config, stats.hello
    return Setting(
        server="its own" if config.bundle is not None else config.server_address,
        policy=hello.model,
        robot=str(config.robot.get_choice_name(type(config.robot))),
        fps=config.fps,
        control_hz=config.fps * config.substeps,
        rows=hello.actions_per_chunk,
        threshold=str(config.chunk_size_threshold),
        jpeg_quality=stats.stream.uplink.quality,
        idle_gap_ms=idle_gap_ms,
        pictures=tuple(pictures),
    )


def _counts(histogram: Histogram) -> list[tuple[float, int]]:
    """(the bucket's least seconds, ticks), only buckets that have some."""
    return [(bucket_floor(index) / 1e9, count) for index, count in enumerate(histogram.counts) if count]
