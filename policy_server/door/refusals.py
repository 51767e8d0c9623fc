"""Peers that are refused, and the reason, in the log: once a minute, since they try again several times a second."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from urllib.parse import unquote

from edge_runtime.program.logs import Sparing

log = logging.getLogger(__name__)
log.addFilter(Sparing())  # a stranger can cause its lines

_AGAIN_AFTER_S = 60.0
_REMEMBERED = 256


class Refusals:
    """Call it with gRPC's name of a peer and a reason."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = 0
        self._said_s: OrderedDict[tuple[str, str], float] = OrderedDict()

    def __call__(self, peer: str, reason: str) -> None:
        peer = unquote(peer)
        what = (peer.rpartition(":")[0], reason)  # its next try comes from another port
        now_s = time.monotonic()
        with self._lock:
            self.count += 1
            if now_s - self._said_s.get(what, -_AGAIN_AFTER_S) < _AGAIN_AFTER_S:
                return
            self._said_s[what] = now_s
            self._said_s.move_to_end(what)
            while len(self._said_s) > _REMEMBERED:
                self._said_s.popitem(last=False)
        log.warning("%s refused: %s", peer, reason)
