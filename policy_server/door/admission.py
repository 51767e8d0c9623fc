"""Who may have a place (a session, a question): so many in all, so many from one peer."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

import grpc

from policy_server.door.peers import Peers


class Fault(Exception):
    """A stream is to end with this status."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Admission:
    """Counts `what` by address. `max_per_peer` 0 = no limit but that of all; a peer without address has none either."""

    def __init__(self, places: int, max_per_peer: int, peers: Peers, what: str = "sessions") -> None:
        self._peers = peers
        self._places = places
        self._max_per_peer = max_per_peer
        self._what = what
        self._lock = threading.Lock()
        self._homes: dict[Hashable, str] = {}
        self._count: Counter[str] = Counter()

    def enter(self, guest: Hashable, peer: str) -> None:
        """A place for `guest`, as long as it does not leave. Raises Fault (RESOURCE_EXHAUSTED) when there is none."""
        home = self._peers.home(peer)
        with self._lock:
            if len(self._homes) >= self._places:
                raise Fault(grpc.StatusCode.RESOURCE_EXHAUSTED, f"all {self._places} {self._what} are taken")
            if home and 0 < self._max_per_peer <= self._count[home]:
                raise Fault(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"{home} has {self._max_per_peer} {self._what}, which is all it may",
                )
            self._homes[guest] = home
            self._count[home] += 1

    @contextmanager
    def place(self, context: grpc.ServicerContext) -> Iterator[None]:
        """A place for one call, which is ended where there is none."""
        guest = object()
        try:
            self.enter(guest, context.peer())
        except Fault as fault:
            context.abort(fault.code, str(fault))
        try:
            yield
        finally:
            self.leave(guest)

    def leave(self, guest: Hashable) -> None:
        """Its place is free; leaving twice is harmless."""
        with self._lock:
            home = self._homes.pop(guest, None)
            if home is not None:
                self._count -= Counter({home: 1})  # in place, and forgets a home that has none left
