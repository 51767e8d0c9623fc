"""A line on the screen for each thing that is done, with the time since the start."""

from __future__ import annotations

import time


class Progress:
    """Prints lines with seconds in front; `beat` speaks up only when nothing was said for `quiet_s`."""

    def __init__(self, quiet_s: float = 5.0) -> None:
        self._start_s = self._last_s = time.monotonic()
        self._quiet_s = quiet_s

    def __call__(self, line: str) -> None:
        self._last_s = time.monotonic()
        print(f"{self._last_s - self._start_s:7.1f} s  {line}", flush=True)

    def beat(self, line: str) -> None:
        if time.monotonic() - self._last_s > self._quiet_s:
            self(line)
