"""Who connected and got no further: gRPC says nothing about a handshake that fails, so the kernel is asked.

gRPC calls `begins` at the start of each TLS handshake; the peers of our port are then in the kernel's table of
connections. One that has left again, and was never `heard` in a call, did not get in.
"""

from __future__ import annotations

import ipaddress
import logging
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path

log = logging.getLogger(__name__)

_TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
_ESTABLISHED = "01"
_SETTLED_S = 0.5  # a handshake takes milliseconds, and a call follows it at once
_LOOK_SHARE = 0.05  # of the time, at most: reading a long table must not become a way to keep us busy
_REMEMBERED = 1024  # peers that were heard


class HandshakeFailures:
    """Tells `refused` the peer, in gRPC's words, of each TLS handshake that no call followed."""

    def __init__(self, refused: Callable[[str, str], None]) -> None:
        self._port = 0  # nobody's, until `start`
        self._refused = refused
        self._lock = threading.Lock()
        self._heard: OrderedDict[str, None] = OrderedDict()
        self._known: set[str] = set()  # judged, and still in the table
        self._waiting: set[str] = set()
        self._look_again_s = 0.0
        self._begun = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="handshakes", daemon=True)

    def start(self, port: int) -> None:
        """Ours is `port`: to be called before the first handshake."""
        self._port = port
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        with self._lock:
            self._begun.set()
        self._thread.join()

    def begins(self) -> None:
        """A handshake begins, and its peer is in the table; a moment later it may be gone."""
        with self._lock:
            began_s = time.monotonic()
            if began_s >= self._look_again_s:
                self._waiting |= self._table().keys() - self._known
                ended_s = time.monotonic()
                self._look_again_s = ended_s + (ended_s - began_s) / _LOOK_SHARE
            self._begun.set()

    def heard(self, peer: str) -> None:
        """`peer` got in: this is a call of its."""
        with self._lock:
            self._heard[peer] = None
            while len(self._heard) > _REMEMBERED:
                self._heard.popitem(last=False)

    def _run(self) -> None:
        while self._begun.wait():
            if self._stopping.wait(_SETTLED_S):
                return
            try:
                for peer in self._judge():
                    self._refused(peer, "the TLS handshake failed")
            except Exception:  # such as a table that cannot be opened for want of descriptors: the next look may
                log.exception("failed handshakes could not be looked for")

    def _judge(self) -> list[str]:
        """Those that are gone and were never heard; who is still at it is asked about again."""
        with self._lock:
            table = self._table()
            settled = {peer for peer in self._waiting if peer in self._heard or table.get(peer) != _ESTABLISHED}
            failed = [peer for peer in settled if peer not in self._heard]
            self._waiting -= settled
            self._known = (self._known | settled) & table.keys()
            if not self._waiting and not self._stopping.is_set():  # or `stop` would wake it in vain
                self._begun.clear()
            return failed

    def _table(self) -> dict[str, str]:
        """Each peer that is connected to our port, and the state of its connection; proc(5) describes the file."""
        port = f":{self._port:04X} "
        found = {}
        for path in _TABLES:
            for line in _lines(path):
                if port in line:
                    _, local, remote, state, *_ = line.split(maxsplit=4)
                    if local.endswith(port[:-1]) and not remote.endswith(":0000"):  # that would be the listener itself
                        found[_peer(remote)] = state
        return found


def _lines(path: Path) -> Iterator[str]:
    """The table's lines but its head; none where there is no such table."""
    if path.exists():
        yield from path.read_text().splitlines()[1:]


def _peer(remote: str) -> str:
    """`0100007F:A1B2` as gRPC writes it, `ipv4:127.0.0.1:41394`: each 32 bits are in the machine's own order."""
    digits, _, port = remote.partition(":")
    words = (int(digits[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(digits), 8))
    address = ipaddress.ip_address(b"".join(words))
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return f"ipv6:%5B{address}%5D:{int(port, 16)}"
    return f"ipv4:{getattr(address, 'ipv4_mapped', address)}:{int(port, 16)}"
