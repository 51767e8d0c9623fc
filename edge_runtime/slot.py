"""A one-place mailbox in which the item of greatest order wins."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

T = TypeVar("T")


class Closed(Exception):
    """The slot was closed: nothing will come any more."""


class LatestSlot(Generic[T]):
    """Hands one item from one thread to another; items of lesser order are dropped and counted."""

    def __init__(self) -> None:
        self._ready = threading.Condition()
        self._item: T | None = None
        self._order = 0
        self._closed = False
        self.dropped = 0

    def put(self, item: T, order: int) -> bool:
        """Offer `item`; False if one of greater order was here before (order never goes back, a take included)."""
        with self._ready:
            if order < self._order:
                self.dropped += 1
                return False
            self.dropped += self._item is not None
            self._item, self._order = item, order
            self._ready.notify()
            return True

    def take(self, timeout_s: float | None = None) -> T | None:
        """The newest item, or None once `timeout_s` brought none. Raises Closed after `close`."""
        with self._ready:
            self._ready.wait_for(lambda: self._item is not None or self._closed, timeout_s)
            if self._closed:
                raise Closed
            item, self._item = self._item, None
            return item

    def close(self) -> None:
        """Wake every waiter with Closed; closing twice is harmless."""
        with self._ready:
            self._closed = True
            self._item = None
            self._ready.notify_all()
