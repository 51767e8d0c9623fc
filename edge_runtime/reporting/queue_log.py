"""The queue's level over time, as CSV."""

from __future__ import annotations

import csv
from pathlib import Path
from types import TracebackType

from edge_runtime._realtime import Record
from edge_runtime.errors import OutputError
from edge_runtime.reporting.run_stats import RunStats


class QueueLog:
    """Writes (seconds since the start, episode, level before the pick, timesteps so far) of each record it sees.

    A context manager: OutputError on entering when `path` cannot be written, and on leaving when the disk became full;
    the run goes on meanwhile.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lost: OSError | None = None

    def __enter__(self) -> QueueLog:
        try:
            self._file = self._path.open("w", newline="")
        except OSError as error:
            raise self._failure(error) from error
        self._writer = csv.writer(self._file)
        self._write(("time_s", "episode", "level", "count"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._file.close()
        except OSError as full:
            self._lost = self._lost or full
        if self._lost is not None:
            raise self._failure(self._lost) from self._lost

    def see(self, record: Record, stats: RunStats) -> None:
        seconds = record.time_ns / 1e9 - stats.started_s
        self._write((seconds, stats.episode, record.level, record.sequence))

    def _write(self, row: tuple[object, ...]) -> None:
        if self._lost is None:
            try:
                self._writer.writerow(row)
            except OSError as error:
                self._lost = error

    def _failure(self, error: OSError) -> OutputError:
        return OutputError(f"queue_log: cannot write {self._path}: {error.strerror}")
