"""A serial port that is ours alone: opened, written, read with a deadline, and lost in one way only."""

from __future__ import annotations

import errno
import fcntl
import grp
import logging
import os
import select
import stat
import termios
import time
from pathlib import Path

import serial

from edge_runtime.errors import AccessError, BusError, BusTimeout, DeviceError

BAUD = 1_000_000
BY_ID = Path("/dev/serial/by-id")

logger = logging.getLogger(__name__)


class Port:
    """The serial port `path`, 1 Mbit/s 8N1. When the line hangs up it is closed, and BusError says so.

    Every request to the servos is one `write`, and every answer comes out of `read`; `now` is the time in which the
    line is waited for. A simulated line overrides these three.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._serial = serial.Serial(baudrate=BAUD, timeout=0, exclusive=True)
        self._serial.port = path

    @property
    def is_open(self) -> bool:
        return bool(self._serial.is_open)

    def open(self) -> None:
        """Open it for us alone: AccessError when not permitted; BusError when absent, in use or no serial port."""
        try:
            self._serial.open()
            fcntl.ioctl(self._serial.fileno(), termios.TIOCEXCL)  # flock binds only those who ask for it
        except (OSError, ValueError, termios.error) as error:
            self._serial.close()
            raise _refusal(self.path, error) from error

    def close(self) -> None:
        """Twice is harmless."""
        if not self._serial.is_open:
            return
        try:
            fcntl.ioctl(
                self._serial.fileno(), termios.TIOCNXCL
            )  # on a pty it belongs to the pair, and would outlive us
        except OSError as error:
            logger.debug("%s went before it was closed: %s", self.path, error)
        self._serial.close()

    def fileno(self) -> int:
        if not self._serial.is_open:
            raise BusError(f"{self.path}: is not open", port=self.path)
        return int(self._serial.fileno())

    def now(self) -> float:
        """Monotonic seconds, for the deadlines of `read`."""
        return time.monotonic()

    def set_baud(self, baud: int) -> None:
        """Another rate from the next byte on, in bit/s; BusError when the adapter cannot."""
        try:
            self._serial.flush()  # what was written goes out at the old rate
            self._serial.baudrate = baud
        except (OSError, ValueError, termios.error) as error:
            watch = select.poll()
            watch.register(self.fileno(), 0)  # hang-ups alone
            if watch.poll(0):
                raise self._hung_up() from error
            raise BusError(f"{self.path}: cannot speak at {baud} bit/s: {error}", port=self.path) from error

    def write(self, data: bytes) -> None:
        """All of `data`, or BusTimeout when the line does not take it."""
        fd = self.fileno()
        try:
            sent = os.write(fd, data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise self._hung_up() from error
        if sent < len(data):
            raise BusTimeout(f"{self.path}: takes no more bytes", port=self.path)

    def read(self, deadline: float, most: int = 4096) -> bytes:
        """The next bytes, at most `most`, or none at `deadline` (monotonic seconds). Sleeps until one or the other."""
        fd = self.fileno()
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        if not poll.poll(max(deadline - time.monotonic(), 0.0) * 1e3):
            return b""
        try:
            data = os.read(fd, most)
        except OSError as error:
            raise self._hung_up() from error
        if not data:  # of a readable tty: the other end is closed
            raise self._hung_up()
        return data

    def _hung_up(self) -> BusError:
        self.close()
        return BusError(f"{self.path}: the port is gone: unplugged, or its adapter lost power", port=self.path)


def adapters() -> list[str]:
    """The serial adapters of this machine by their stable names."""
    return sorted(str(path) for path in BY_ID.glob("*"))


def _refusal(port: str, error: Exception) -> DeviceError | AccessError:
    """Why `port` did not open, as one of our errors."""
    number = getattr(error, "errno", None)
    path = Path(port)
    if number in (errno.EACCES, errno.EPERM):
        group = _group(path)
        return AccessError(
            f"robot.port: {port} may be opened by group {group} only: sudo usermod -aG {group} $USER, then log in again"
        )
    if number in (errno.EAGAIN, errno.EBUSY):
        return BusError(f"robot.port: {port} is in use by another program; a bus has one owner", port=port)
    if number == errno.ENOENT:
        here = ", ".join(adapters()) or f"none in {BY_ID}; is it plugged in?"
        return BusError(f"robot.port: {port} is not there; serial adapters: {here}", port=port)
    if not path.exists() or stat.S_ISCHR(path.stat().st_mode):
        reason = os.strerror(number) if number else error
        return BusError(f"robot.port: {port} cannot be opened: {reason}", port=port)
    return BusError(f"robot.port: {port} is not a serial port", port=port)


def _group(path: Path) -> str:
    """The group that may open `path`; dialout, the usual one, when that is root's or has no name."""
    try:
        group = grp.getgrgid(path.stat().st_gid)
    except (OSError, KeyError):
        return "dialout"
    return group.gr_name if group.gr_gid else "dialout"
