"""A TCP line of a given speed that counts what passes: a proxy on loopback.

A piece leaves when the line has carried it, and nothing is taken in meanwhile: like a link whose buffer is small.
(`rig.proxy` delays and cuts too, in small pieces through an event loop; at 55 MB/s that would be the bottleneck.)
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType

PIECE = 32 << 10
BUFFER = 64 << 10


class Line:
    """Passes on to `port`, up to `bytes_per_s` in each direction (0 = any). A context manager."""

    def __init__(self, port: int, bytes_per_s: float = 0.0) -> None:
        self._target = ("127.0.0.1", port)
        self._bytes_per_s = bytes_per_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.port = int(self._listener.getsockname()[1])
        self.up = 0  # bytes from the client so far
        self.down = 0

    def __enter__(self) -> Line:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for end in (self._listener, *self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # wakes who waits for it
        for thread in self._threads:
            thread.join()
        for end in (self._listener, *self._ends):
            end.close()

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=work, args=arguments, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                for end in (near, far):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
                    self._ends.append(end)
                self._start(self._carry, near, far, "up")
                self._start(self._carry, far, near, "down")

    def _carry(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        free_s = 0.0
        with contextlib.suppress(OSError):
            while piece := source.recv(PIECE):
                setattr(self, way, getattr(self, way) + len(piece))
                if self._bytes_per_s:
                    free_s = max(free_s, time.monotonic()) + len(piece) / self._bytes_per_s
                    time.sleep(max(free_s - time.monotonic(), 0.0))
                sink.sendall(piece)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
