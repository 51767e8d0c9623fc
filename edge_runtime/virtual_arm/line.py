"""The adapter's side of a virtual serial port: a pty, and the one thread that hears frames and says bytes when due."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import heapq
import os
import select
import socket
import struct
import termios
import threading
import time
import tty
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path

from edge_runtime.errors import OutputError
from edge_runtime.motors.feetech import Frame, FrameDecoder

_FRAME_GAP_S = 0.005  # a frame that pauses longer was given up
_IDLE_S = 1.0
# Linux; the termios module has no names for them.
_TIOCGEXCL = 0x80045440
_TCGETS2 = 0x802C542A
_OUTPUT_SPEED = struct.Struct("40x I")  # of struct termios2, in bit/s


class Line:
    """Calls `hear` with each frame that a client sends, on the line's one thread; `link` is a symlink to the pty."""

    def __init__(self, link: Path | None, hear: Callable[[Frame], None]) -> None:
        self._link, self._hear = link, hear
        self._decoder = FrameDecoder()
        self._due: list[tuple[float, int, bytes]] = []  # a heap; the number keeps equals in order
        self._said = 0
        self._name = ""  # of the pty; empty while unplugged
        self._master = self._slave = self._wake = -1  # file descriptors
        self._calls: list[tuple[Callable[[], None], Future[None]]] = []
        self._claim = ExitStack()
        self._closing = False
        self._heard_s = 0.0
        self._thread = threading.Thread(target=self._run, name="virtual-bus", daemon=True)

    @property
    def path(self) -> str:
        """What a client opens; empty while unplugged."""
        return str(self._link) if self._link and self._name else self._name

    @property
    def baud(self) -> int:
        """The rate that the client has set, in bit/s. Only from `hear`."""
        speed: int = _OUTPUT_SPEED.unpack(fcntl.ioctl(self._slave, _TCGETS2, bytes(_OUTPUT_SPEED.size)))[0]
        return speed

    def open(self) -> None:
        """Plug in and begin to listen; OutputError when the link cannot be made, or is that of another line."""
        with ExitStack() as opening:
            if self._link is not None:
                opening.enter_context(_claim(self._link))
            self.plug()
            self._claim = opening.pop_all()
        self._wake = os.eventfd(0)
        self._thread.start()

    def close(self) -> None:
        """End the thread and the port; twice is harmless."""
        if self._thread.is_alive():
            self.call(self._end)
            self._thread.join()
            os.close(self._wake)
            self._claim.close()

    def call(self, act: Callable[[], None]) -> None:
        """Have the thread, which owns the port, do `act`, and wait until it has."""
        if not self._thread.is_alive():
            act()
            return
        self.soon(act).result()

    def soon(self, act: Callable[[], None]) -> Future[None]:
        """Have the thread do `act` before it hears more; from `hear` too."""
        done: Future[None] = Future()
        self._calls.append((act, done))
        os.eventfd_write(self._wake, 1)
        return done

    def plug(self) -> None:
        """Open a new pty and point the link to it, unless plugged in already."""
        if self._name:
            return
        # Our own hold on the slave side keeps the pty alive while no client has it open.
        self._master, self._slave = os.openpty()
        tty.setraw(self._slave)
        _set_speed(self._slave)
        os.set_blocking(self._master, False)
        self._name = os.ttyname(self._slave)
        if self._link is not None:
            try:
                _point(self._link, self._name)
            except OutputError:
                self.unplug()
                raise

    def unplug(self) -> None:
        """Close both sides, as pulling the adapter does: every client sees the line hang up."""
        if not self._name:
            return
        if self._link is not None and self._link.is_symlink() and str(self._link.readlink()) == self._name:
            self._link.unlink()
        self._name = ""
        self._due.clear()
        self._decoder.reset()
        os.close(self._slave)
        os.close(self._master)

    def say(self, raw: bytes, when: float) -> None:
        """Put bytes on the line at `when`, in seconds of the monotonic clock. Only from `hear`."""
        self._said += 1
        heapq.heappush(self._due, (when, self._said, raw))

    def _end(self) -> None:
        self.unplug()
        self._closing = True

    def _run(self) -> None:
        while not self._closing:
            ports = [self._wake, self._master] if self._name else [self._wake]
            ready, _, _ = select.select(ports, [], [], self._patience())
            if self._wake in ready:
                os.eventfd_read(self._wake)
                while self._calls:
                    _do(*self._calls.pop(0))
            elif self._master in ready:
                self._listen()
            elif not ready and self._name and not self._due:
                self._free_dead_client()
            self._speak()

    def _patience(self) -> float | None:
        """How long nothing need be done, in seconds."""
        if self._due:
            return max(self._due[0][0] - time.monotonic(), 0.0)
        return _IDLE_S if self._heard_s else None

    def _listen(self) -> None:
        now = time.monotonic()
        if now - self._heard_s > _FRAME_GAP_S:
            self._decoder.reset()
        self._heard_s = now
        for request in self._decoder.feed(os.read(self._master, 4096)):
            self._hear(request)

    def _speak(self) -> None:
        while self._due and self._due[0][0] <= time.monotonic():
            _, _, raw = heapq.heappop(self._due)
            try:
                os.write(self._master, raw)
            except BlockingIOError:
                continue  # a client that never reads loses bytes, as on a real adapter

    def _free_dead_client(self) -> None:
        """Lift TIOCEXCL when its owner was killed: it would outlive it, since our own hold keeps the pty open."""
        flag = struct.unpack("i", fcntl.ioctl(self._slave, _TIOCGEXCL, bytes(4)))[0]
        self._heard_s = self._heard_s if flag else 0.0  # nothing to watch any more
        if not flag:
            return
        try:
            fcntl.flock(self._slave, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # it lives
        fcntl.ioctl(self._slave, termios.TIOCNXCL)
        fcntl.flock(self._slave, fcntl.LOCK_UN)


def _set_speed(slave: int) -> None:
    """1 Mbit/s, for a client that opens the pty as a file."""
    attributes = termios.tcgetattr(slave)
    attributes[4] = attributes[5] = termios.B1000000
    termios.tcsetattr(slave, termios.TCSANOW, attributes)


def _do(act: Callable[[], None], done: Future[None]) -> None:
    try:
        act()
    except OutputError as error:
        done.set_exception(error)
    else:
        done.set_result(None)


def _claim(link: Path) -> socket.socket:
    """The name is ours while this is open and we live: a second line would take it from under the first's clients."""
    name = hashlib.sha256(os.fsencode(link.parent.resolve() / link.name)).hexdigest()
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0virtual-arm-{name}")
    except OSError as error:
        claim.close()
        taken = "a virtual arm that runs has it; give this one a link of its own"
        why = taken if error.errno == errno.EADDRINUSE else error.strerror
        raise OutputError(f"link: {link}: {why}") from error
    return claim


def _point(link: Path, target: str) -> None:
    """Make `link` a symlink to `target`; a link is replaced, anything else is not ours to remove."""
    try:
        if link.is_symlink():
            link.unlink()
        link.symlink_to(target)
    except OSError as error:
        raise OutputError(f"link: cannot create {link}: {error.strerror or error}") from error
