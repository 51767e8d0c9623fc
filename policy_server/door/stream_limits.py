"""How one stream has to behave: not too many messages, no endless silence, nothing left half done."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

import grpc

from policy_server.config import LimitsConfig
from policy_server.door.admission import Fault
from policy_server.door.deadlines import Deadlines


class StreamLimits:
    """Told what happens on a stream; calls `end` with the status that is due. What is told after `over` is ignored."""

    def __init__(self, limits: LimitsConfig, deadlines: Deadlines, *, end: Callable[[Fault], None]) -> None:
        self._limits = limits
        self._deadlines = deadlines
        self._end = end
        self._lock = threading.Lock()  # over what is due: the reader may still be at work when the stream has ended
        self._over = False
        self._rate = limits.observations_per_second or math.inf
        self._allowance = max(self._rate, 1.0)  # a second's worth may come at once
        self._counted_s = time.monotonic()

    def heard(self, *, asks: bool) -> None:
        """A message came; one that `asks` for an answer is counted. Raises Fault when these are too many."""
        if self._limits.idle_s:
            self._due("idle", self._limits.idle_s, self._idle)
        if not asks or self._rate == math.inf:
            return
        now_s = time.monotonic()
        most = max(self._rate, 1.0)
        self._allowance = min(most, self._allowance + (now_s - self._counted_s) * self._rate) - 1
        self._counted_s = now_s
        if self._allowance < 0:
            raise Fault(grpc.StatusCode.RESOURCE_EXHAUSTED, f"more than {self._rate:g} observations per second")

    def arriving(self, observation: int | None) -> None:
        """`observation` is under way from now on; None = all that began is here."""
        if observation is None:
            self._deadlines.clear((self, "unfinished"))
        else:
            self._due("unfinished", self._limits.unfinished_s, lambda: self._unfinished(observation))

    def over(self) -> None:
        """The stream has ended, for good."""
        with self._lock:
            self._over = True
            for what in ("idle", "unfinished"):
                self._deadlines.clear((self, what))

    def _due(self, what: str, seconds: float, passed: Callable[[], None]) -> None:
        with self._lock:
            if not self._over:
                self._deadlines.set((self, what), seconds, passed)

    def _idle(self) -> None:
        self._end(Fault(grpc.StatusCode.DEADLINE_EXCEEDED, f"nothing heard for {self._limits.idle_s:g} s"))

    def _unfinished(self, observation: int) -> None:
        limit = f"{self._limits.unfinished_s:g} s"
        self._end(Fault(grpc.StatusCode.DEADLINE_EXCEEDED, f"observation {observation}: unfinished after {limit}"))
