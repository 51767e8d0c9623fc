"""The time in which an arm is waited for: the machine's own, or that of a simulation."""

from __future__ import annotations

import threading
import time


class Clock:
    """Monotonic seconds, and waiting in them. A simulation gives one that moves only while it is waited for."""

    def now(self) -> float:
        return time.monotonic()

    def wait(self, seconds: float, until: threading.Event) -> bool:
        """Wait for `seconds`, or less if `until` is set; whether it is."""
        return until.wait(seconds)
