"""Log lines are written by a thread of their own: a stopped terminal or a full pipe does not delay the arm."""

from __future__ import annotations

import logging
import os
import queue
import select
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
KEPT = 1000  # texts; what comes while so many wait is lost
CLOSE_S = 1.0  # for what is left at the end


class BackgroundStream:
    """Takes text at once; a thread writes it to the descriptor `fd`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._texts: queue.Queue[str] = queue.Queue(KEPT)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def write(self, text: str) -> int:
        with suppress(queue.Full):
            self._texts.put_nowait(text)
        return len(text)

    def flush(self) -> None:
        """Return at once."""

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def close(self) -> None:
        """Returns when all is written, or after CLOSE_S."""
        self._closed = True
        self.write("")
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while not (self._closed and self._texts.empty()):
            data = self._texts.get().encode(errors="backslashreplace")
            while data:
                try:
                    data = data[os.write(self._fd, data) :]  # not sys.stderr: its lock would be held at exit
                except BlockingIOError:  # somebody else made it so, for all who share it
                    select.select([], [self._fd], [])
                except OSError:  # a terminal that was closed
                    break


@contextmanager
def to_stderr(level: int, form: str = FORMAT) -> Iterator[BackgroundStream]:
    """One line per change of state, for a terminal or the journal."""
    stream = BackgroundStream(sys.stderr.fileno())
    logging.basicConfig(level=level, format=form, stream=stream)
    try:
        yield stream
    finally:
        stream.close()


class Sparing(logging.Filter):
    """For a logger whose lines a stranger can cause: of each kind BURST at once, then PER_S; the rest is counted."""

    BURST, PER_S = 30, 1.0

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._kinds: dict[str, tuple[float, float, int]] = {}  # allowance, when it was counted, lines left out

    def filter(self, record: logging.LogRecord) -> bool:
        now_s = time.monotonic()
        with self._lock:
            allowance, counted_s, left_out = self._kinds.get(record.msg, (float(self.BURST), now_s, 0))
            allowance = min(float(self.BURST), allowance + (now_s - counted_s) * self.PER_S)
            said = allowance >= 1
            self._kinds[record.msg] = (allowance - said, now_s, 0 if said else left_out + 1)
        if said and left_out:
            record.msg = f"{record.msg} (and {left_out} more like it, left out)"
        return said
