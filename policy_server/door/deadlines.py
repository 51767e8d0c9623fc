"""Things that are to happen unless something else happens before: one thread, asleep until the earliest.

They are set and cleared several times for each message, so doing that hardly ever wakes the thread: it sleeps no longer
than the shortest time that was ever given, and what is set for later than its next look is found then.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Hashable

log = logging.getLogger(__name__)


class Deadlines:
    """Calls back once the time of a key has passed; setting a key again replaces its time.

    A callback that raises is logged; the others are called all the same.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()  # over all that follows
        self._due: dict[Hashable, tuple[float, Callable[[], None]]] = {}
        self._awake_s = math.inf  # when the thread will look
        self._shortest_s = math.inf  # that was ever given
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="deadlines", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Nothing is called back any more; stopping twice is harmless."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def set(self, key: Hashable, seconds: float, passed: Callable[[], None]) -> None:
        at_s = time.monotonic() + seconds
        with self._changed:
            self._due[key] = (at_s, passed)
            if at_s < self._awake_s:  # a later one is found when the thread wakes anyway
                self._shortest_s = min(self._shortest_s, seconds)
                self._changed.notify()

    def clear(self, key: Hashable) -> None:
        """`key` will not be called back, if it was not already; clearing twice is harmless."""
        with self._changed:
            self._due.pop(key, None)

    def _run(self) -> None:
        while (passed := self._wait()) is not None:
            for call in passed:
                try:
                    call()
                except Exception:  # one stream's defect must not switch off the limits of all the others
                    log.exception("a deadline could not be acted on")

    def _wait(self) -> list[Callable[[], None]] | None:
        """Those whose time has passed, once it has; they are no longer due. None once stopped."""
        with self._changed:
            while not self._closed:
                now_s = time.monotonic()
                late = [key for key, (at_s, _) in self._due.items() if at_s <= now_s]
                if late:
                    return [self._due.pop(key)[1] for key in late]
                # Not beyond the shortest: the next of its kind would have to wake the thread.
                earliest_s = min((at_s for at_s, _ in self._due.values()), default=math.inf)
                self._awake_s = min(earliest_s, now_s + self._shortest_s) if self._due else math.inf
                self._changed.wait(None if self._awake_s == math.inf else self._awake_s - now_s)
            return None
