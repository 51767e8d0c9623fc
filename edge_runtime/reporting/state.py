"""What the runtime is doing, as one small machine that logs each change once."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Literal

log = logging.getLogger(__name__)

State = Literal["starting", "running", "draining", "holding", "fault", "stopping"]
HOLDING_AFTER_S = 0.5
REMEMBERED = 1000


class RuntimeState:
    """`running` <-> `draining` (no stream, rows left) <-> `holding` (nothing executed for 0.5 s).

    `fault` lasts until the arm is `starting` again; after `stopping` only a fault is told.
    """

    def __init__(self, now_s: float, tell: Callable[[str], None] = lambda state: None) -> None:
        self._lock = threading.Lock()
        self._started_s = now_s
        self._tell = tell
        self._last_row_s = now_s
        self.current: State = "starting"
        self._changes: deque[tuple[float, State]] = deque([(0.0, "starting")], maxlen=REMEMBERED)

    @property
    def changes(self) -> list[tuple[float, State]]:
        """The last thousand: seconds since the start, and what it became."""
        with self._lock:
            return list(self._changes)

    def observe(self, now_s: float, *, connected: bool, level: int, executes: bool) -> None:
        """Follow one tick: is there a stream, how many rows are left, and is one of them executed?

        One that is not finite is not, nor is any while a joint that is not where it was sent stops the plan.
        """
        with self._lock:
            if executes:
                self._last_row_s = now_s
            if self.current in ("fault", "stopping") or (self.current == "starting" and level == 0):
                return
            if not executes and now_s - self._last_row_s >= HOLDING_AFTER_S:
                self._become("holding", now_s)
            elif executes:
                self._become("running" if connected else "draining", now_s)

    def rest(self, now_s: float) -> None:
        """Between episodes nothing is expected to move."""
        with self._lock:
            self._last_row_s = now_s

    def enter(self, state: State, now_s: float) -> None:
        with self._lock:
            self._become(state, now_s)

    def _become(self, state: State, now_s: float) -> None:
        if state != self.current:
            log.info("%s -> %s", self.current, state)
            self.current = state
            self._tell(state)
            self._changes.append((round(now_s - self._started_s, 3), state))
