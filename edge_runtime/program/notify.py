"""What systemd is told, as sd_notify(3) does it: we are ready, this is what we do, we live, we are stopping."""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections.abc import Callable, MutableMapping

log = logging.getLogger(__name__)

_PARTS = 4  # of the watchdog's patience; one word in each is enough


class Notifier:
    """Sends datagrams to the socket that `environ` names, and does nothing where it names none.

    The name is taken out of `environ`: what we start ourselves has nothing to say to systemd.

    `watchdog_s` is how long systemd waits for `alive` before it ends us; 0 = for ever. Nothing here raises: a service
    manager that does not listen is no reason to stop an arm.
    """

    def __init__(
        self, environ: MutableMapping[str, str] = os.environ, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._address = environ.pop("NOTIFY_SOCKET", "")
        self._clock = clock
        ours = environ.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        microseconds = environ.pop("WATCHDOG_USEC", "")
        self.watchdog_s = int(microseconds) / 1e6 if self._address and ours and microseconds.isdecimal() else 0.0
        self._alive_s = -math.inf

    def ready(self) -> None:
        """We have started; the watchdog begins to wait."""
        self._send("READY=1")

    def status(self, line: str) -> None:
        """One line for people, shown by `systemctl status`."""
        self._send("STATUS=" + " ".join(line.split()))

    def alive(self) -> None:
        """There was progress. Cheap enough for every tick: most calls send nothing."""
        now_s = self._clock()
        if self.watchdog_s and now_s - self._alive_s >= self.watchdog_s / _PARTS:
            self._alive_s = now_s
            self._send("WATCHDOG=1")

    def busy(self, within_s: float = 0.0) -> None:
        """From now on the next sign of life may take `within_s`, or as long as it always might."""
        if self.watchdog_s:
            self._send("WATCHDOG=1" + self._patience(max(within_s, self.watchdog_s)))

    def stopping(self, within_s: float) -> None:
        """We are coming to rest, which takes up to `within_s`: the watchdog has to wait for that."""
        self._send("STOPPING=1" + self._patience(within_s) * bool(self.watchdog_s))

    def _patience(self, seconds: float) -> str:
        return f"\nWATCHDOG_USEC={int(seconds * 1e6)}"

    def _send(self, message: str) -> None:
        if not self._address:
            return
        # A socket for each message: a forked child inherits none, and systemd itself may be restarted.
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sender:
            try:
                sender.sendto(message.encode(), self._address.replace("@", "\0", 1))  # @: a name that is no file
            except OSError as error:
                log.debug("systemd was not told %s: %s", message, error)
