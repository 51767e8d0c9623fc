"""What waits to be sent to one robot: bounded, filled from any thread, drained by the stream's own."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from edge_runtime.wire.messages import ServerMessage


@dataclass(frozen=True)
class Outgoing:
    """A message, and the monotonic time in seconds since which it was ready to be encoded."""

    message: ServerMessage
    since_s: float


class Outbox:
    """Iterating yields what was put, until closed. Putting never blocks and never fails.

    `fault` is what the stream is to end with: None = as agreed. With `limit` messages unread, `on_overflow` is called
    once and the rest is dropped: no other session waits for a peer that does not read.
    """

    def __init__(self, limit: int, on_overflow: Callable[[], None]) -> None:
        self._limit = limit
        self._queue: queue.SimpleQueue[Outgoing | None] = queue.SimpleQueue()
        self._on_overflow = on_overflow
        self._lock = threading.Lock()
        self._closed = False
        self.fault: Exception | None = None

    @property
    def closed(self) -> bool:
        return self._closed

    def put(self, message: ServerMessage, since_s: float | None = None) -> None:
        """`since_s`: when it was ready, if that is not now."""
        with self._lock:
            if self._closed:
                return
            if self._queue.qsize() < self._limit:
                self._queue.put(Outgoing(message, time.monotonic() if since_s is None else since_s))
                return
            self._closed = True
            self._queue.put(None)
        self._on_overflow()

    def close(self, fault: Exception | None = None) -> None:
        """Nothing more comes; what was put before is still yielded. Only the first call counts."""
        with self._lock:
            if self._closed:
                return
            self._closed, self.fault = True, fault
            self._queue.put(None)

    def __iter__(self) -> Iterator[Outgoing]:
        return iter(self._queue.get, None)
