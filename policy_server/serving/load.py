"""Is one engine asked for more than it can carry?"""

from __future__ import annotations

WINDOW_S = 2.0
BUSY, RESTED = 0.9, 0.5  # of a window
LATE = 0.1  # of a window's answers


class Load:
    """Judges an engine once in each `WINDOW_S` by what it did in it.

    It is overloaded when it hardly rested and yet robots had run dry before their chunks were ready; no longer, when
    none had, or it rested. A busy engine alone is none: robots that ask again at once keep any engine busy.
    """

    def __init__(self, now_s: float) -> None:
        self.overloaded = False
        self._begin(now_s)

    def served(self, began_s: float, ended_s: float, *, late: int, chunks: int) -> bool:
        """Count a batch, monotonic seconds; `late` of its `chunks` came after their robots had run dry.

        True when a window is over: `overloaded` is judged anew.
        """
        self._busy_s += ended_s - began_s
        self._late += late
        self._chunks += chunks
        elapsed_s = ended_s - self._since_s
        if elapsed_s < WINDOW_S:
            return False
        busy = self._busy_s / elapsed_s
        if self.overloaded:
            self.overloaded = self._late > 0 and busy > RESTED
        else:
            self.overloaded = self._late >= LATE * self._chunks and busy >= BUSY
        self._begin(ended_s)
        return True

    def is_overloaded(self, now_s: float) -> bool:
        """As judged last, unless that is long ago: an idle engine is not overloaded."""
        return self.overloaded and now_s - self._since_s < 5 * WINDOW_S

    def _begin(self, now_s: float) -> None:
        self._since_s = now_s
        self._busy_s = 0.0
        self._late = self._chunks = 0
