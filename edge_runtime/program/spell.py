"""A bad spell: said when it begins and when it is over, which is when all was well for a while."""

from __future__ import annotations

STEADY_S = 5.0  # a single success between failures ends nothing


class Spell:
    """Fed with each failure and each success, at monotonic times in seconds; says which of them is news."""

    def __init__(self, steady_s: float = STEADY_S) -> None:
        self._steady_s = steady_s
        self._well_since_s: float | None = None
        self.lasts = False

    def fails(self, now_s: float) -> bool:
        """True when the spell begins with this failure."""
        begins, self.lasts, self._well_since_s = not self.lasts, True, None
        return begins

    def succeeds(self, now_s: float) -> bool:
        """True when the spell is over with this success."""
        if not self.lasts:
            return False
        if self._well_since_s is None:
            self._well_since_s = now_s
        self.lasts = now_s - self._well_since_s < self._steady_s
        return not self.lasts
