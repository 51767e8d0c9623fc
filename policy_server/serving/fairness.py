"""Whose turn it is among those who share something: equal shares first, then urgency; and decoding in that order.

Each level of a share (a name that was proven, an address, a session) keeps a virtual time for each of its parts: what
that part has had so far. Those that have had least are due, and the most urgent of them goes first. A part that asked
for nothing meanwhile saves up no credit: it starts where the others are. This is start-time fair queueing (Goyal, Vin
and Cheng, 1996), level by level.
"""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Hashable, Sequence
from typing import Protocol, TypeVar

QUICK = 0.5  # of the processor time of any decoding that is under way
Share = tuple[Hashable, ...]  # from the outside in; the last part is the session


class Claimant(Protocol):
    """A session that waits for its turn."""

    @property
    def share(self) -> Share: ...

    @property
    def urgency(self) -> float:
        """Among those who are due the least goes first."""


C = TypeVar("C", bound=Claimant)


class FairOrder:
    """Not for several threads at once."""

    def __init__(self) -> None:
        self._root = _Level()

    def pick(self, ready: Collection[C]) -> C:
        """The one of `ready`, which is not empty, whose turn it is."""
        return self._root.pick(ready, 0)

    def charge(self, share: Share, cost: float = 1.0) -> None:
        """`share` has had `cost`."""
        level = self._root
        for part in share:
            level = level.charge(part, cost)


class _Level:
    """The parts of one share."""

    def __init__(self) -> None:
        self._now = 0.0  # the virtual time: no session that waits has had less
        self._had: dict[Hashable, float] = {}  # only what is beyond `_now` counts
        self._below: dict[Hashable, _Level] = {}

    def pick(self, ready: Collection[C], depth: int) -> C:
        parts: dict[Hashable, list[C]] = defaultdict(list)
        for claimant in ready:
            parts[claimant.share[depth]].append(claimant)
        least = min(self._had.get(part, self._now) for part in parts)
        # When no other session waits it begins anew: none is owed a turn, and those that left are forgotten.
        self._now = max(self._now, least if len(parts) > 1 else max(self._had.values(), default=self._now))
        for part in [part for part, had in self._had.items() if had <= self._now and part not in parts]:
            del self._had[part]
            self._below.pop(part, None)
        due = [claimants for part, claimants in parts.items() if self._had.get(part, self._now) <= self._now]
        return min((self._first(claimants, depth) for claimants in due), key=lambda claimant: claimant.urgency)

    def charge(self, part: Hashable, cost: float) -> _Level:
        self._had[part] = max(self._had.get(part, self._now), self._now) + cost
        return self._below.setdefault(part, _Level())

    def _first(self, claimants: Sequence[C], depth: int) -> C:
        share = claimants[0].share
        if depth + 1 == len(share):
            return claimants[0]
        return self._below.setdefault(share[depth], _Level()).pick(claimants, depth + 1)


class DecodingTurns:
    """At most `places` decode pictures at once; those who wait go in fair order, by the processor time they had.

    Otherwise eight robots that send the costliest pictures there are would leave a ninth one a ninth of the processor.
    One place more is for a session whose last decoding took little beside those under way: it waits for none of them.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._lock = threading.Lock()
        self._order = FairOrder()
        self._waiting: list[DecodingTurn] = []
        self._decoding: list[DecodingTurn] = []

    def of(self, share: Share) -> DecodingTurn:
        """For one session, which decodes once at a time."""
        return DecodingTurn(self, share)

    def enter(self, turn: DecodingTurn) -> None:
        """Let it wait, and go when its time has come."""
        with self._lock:
            self._waiting.append(turn)
            self._grant()

    def leave(self, turn: DecodingTurn) -> None:
        """It is done: the next may go."""
        with self._lock:
            self._order.charge(turn.share, turn.cost_s)
            self._decoding.remove(turn)
            self._grant()

    def _grant(self) -> None:
        while self._waiting and len(self._decoding) < self._places:
            self._start(self._order.pick(self._waiting))
        if self._waiting and len(self._decoding) == self._places:
            quickest = min(self._waiting, key=lambda turn: turn.cost_s)
            if quickest.cost_s <= QUICK * min(turn.cost_s for turn in self._decoding):
                self._start(quickest)

    def _start(self, turn: DecodingTurn) -> None:
        self._waiting.remove(turn)
        self._decoding.append(turn)
        turn.granted.set()


class DecodingTurn:
    """A session's: `with` it, pictures are decoded, once it is the session's turn."""

    urgency = 0.0

    def __init__(self, turns: DecodingTurns, share: Share) -> None:
        self._turns = turns
        self.share = share
        self.cost_s = math.inf  # processor time of the last one; the first is not known to be quick
        self.granted = threading.Event()
        self._began_s = 0.0

    def __enter__(self) -> None:
        self.granted.clear()
        self._turns.enter(self)
        self.granted.wait()
        self._began_s = time.thread_time()

    def __exit__(self, *_: object) -> None:
        self.cost_s = time.thread_time() - self._began_s
        self._turns.leave(self)
