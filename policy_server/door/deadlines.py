"""Things that are to happen unless something else happens before: one thread, asleep until the earliest.

Set and cleared several times for each message, so neither takes a lock nor wakes the thread as a rule: single steps on
a dictionary, each whole by the interpreter's own lock, in this order.

1. `set` stores the time, then looks when the thread will be awake, and wakes it if that is too late.
2. The thread says that it is about to look (awake: never, so that every `set` waits for it), looks, then says until
   when it sleeps. So it has seen a time, or whoever stored it has seen when it wakes.
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
        self._changed = threading.Condition()
        self._due: dict[Hashable, tuple[float, Callable[[], None]]] = {}
        self._awake_s = math.inf  # when the thread will look
        self._shortest_s = math.inf  # that anybody ever gave
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
        self._due[key] = (at_s, passed)
        if at_s < self._awake_s:  # a later one is found when the thread wakes anyway
            with self._changed:
                self._shortest_s = min(self._shortest_s, seconds)
                self._changed.notify()

    def clear(self, key: Hashable) -> None:
        """`key` will not be called back, if it was not already; clearing twice is harmless."""
        self._due.pop(key, None)

    def _run(self) -> None:
        while (passed := self._wait()) is not None:
            for call in passed:
                try:
                    call()
                except Exception:  # one stream's defect must not switch off the limits of all the others
                    log.exception("a deadline could not be acted on")

    def _wait(self) -> list[Callable[[], None]] | None:
        """Those whose time has passed, once it has, if not cleared since; no longer due. None once stopped."""
        with self._changed:
            while not self._closed:
                self._awake_s = math.inf
                now_s = time.monotonic()
                due = list(self._due.items())
                late = [key for key, (at_s, _) in due if at_s <= now_s]
                if late:
                    return [entry[1] for key in late if (entry := self._due.pop(key, None)) is not None]
                if due:
                    # Not beyond the shortest: the next of its kind would have to wake the thread.
                    self._awake_s = min(now_s + self._shortest_s, *(at_s for _, (at_s, _) in due))
                self._changed.wait(None if self._awake_s == math.inf else self._awake_s - now_s)
            return None
