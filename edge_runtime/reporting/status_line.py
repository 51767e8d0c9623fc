"""One line on a terminal that shows how the run goes; log lines push it down instead of mixing with it."""

from __future__ import annotations

import logging
from types import TracebackType

from edge_runtime._realtime import Record
from edge_runtime.link.uplink import BEST_QUALITY
from edge_runtime.program.logs import BackgroundStream
from edge_runtime.reporting.run_stats import RunStats

EVERY_S = 0.25
WIDTH = 78
_BAR = 10
_ERASE = "\r\x1b[K"


class StatusLine:
    """A listener that draws on `out`, a terminal, four times a second. A context manager: the line goes with it."""

    def __init__(self, out: BackgroundStream) -> None:
        self._out = out
        self._drawn_s = self._ticks = 0.0
        self._handlers = list(logging.getLogger().handlers)

    def __enter__(self) -> StatusLine:
        for handler in self._handlers:
            handler.addFilter(self._make_way)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handler in self._handlers:
            handler.removeFilter(self._make_way)
        self._write(_ERASE)

    def see(self, record: Record, stats: RunStats) -> None:
        now_s = record.time_ns / 1e9
        if now_s - self._drawn_s < EVERY_S:
            return
        ticks = stats.loop.counters()["ticks"]
        rate_hz = (ticks - self._ticks) / (now_s - self._drawn_s)
        self._drawn_s, self._ticks = now_s, ticks
        self._write(_ERASE + line(stats, rate_hz)[:WIDTH])

    def _make_way(self, record: logging.LogRecord) -> bool:
        self._write(_ERASE)
        return True

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def line(stats: RunStats, rate_hz: float) -> str:
    """`running   30.0 Hz  queue ████░░░░░░ 22 of 50  round trip 312 ms  0 starved`."""
    now, rows = stats.now(), stats.hello.actions_per_chunk
    level = int(now["queue_level"])
    full = min(round(level / rows * _BAR), _BAR)
    coarser = now["jpeg_quality"]
    quality = f"  JPEG {coarser}" if 0 < coarser < BEST_QUALITY else ""
    return (
        f"{now['state']:<9}{rate_hz:5.1f} Hz  queue {'█' * full}{'░' * (_BAR - full)} {level} of {rows}  "
        f"round trip {now['round_trip_s'] * 1e3:.0f} ms  {stats.loop.counters()['starved']} starved{quality}"
    )
