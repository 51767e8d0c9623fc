"""The queue's level over time, kept in memory and written as CSV."""

from __future__ import annotations

import csv
from pathlib import Path

from edge_runtime._realtime import Record
from edge_runtime.account import Account
from edge_runtime.errors import OutputError


class QueueLog:
    """Keeps (seconds since the start, episode, level before the pick, timesteps so far) of each record it sees."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, int, int, int]] = []

    def see(self, record: Record, account: Account) -> None:
        self.rows.append((record.time_ns / 1e9 - account.started_s, account.episode, record.level, record.sequence))

    def write(self, path: Path) -> None:
        """Raises OutputError."""
        try:
            with path.open("w", newline="") as file:
                csv.writer(file).writerows([("time_s", "episode", "level", "count"), *self.rows])
        except OSError as error:
            raise OutputError(f"queue_log: cannot write {path}: {error.strerror}") from error
