"""The supervisor: a small process that stops the arm when the runtime has died or hangs.

It waits on a socket for orders, each a stop plan with a duplicate of the serial port, or `STAND_DOWN`; each is
answered once it is in force. It acts when the socket closes, when no tick of the loop came in time, or on `ACT`, when
the runtime could not let go of the arm itself: it fences the loop off, carries out the plan and ends, since its
duplicate keeps the port locked. Its exit code is 0, or that of a DeviceError when torque could not be confirmed off.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import signal
import socket
import sys
import termios
import threading
import time
from dataclasses import dataclass, replace

from edge_runtime.acting.supervisor.page import Page
from edge_runtime.errors import DeviceError
from edge_runtime.motors.bus import Bus
from edge_runtime.motors.clock import Clock
from edge_runtime.motors.port import Port
from edge_runtime.motors.stopping import StopPlan, carry_out
from edge_runtime.program import logs

STAND_DOWN = b"stand down"
ACT = b"act"
DONE = b"done"
LONGEST_ORDER = 8192
LOOK_EVERY_S = 0.3  # whether the loop has begun to tick
LATE_S = 1.0  # beyond what the plan takes: then something other than the servos keeps us
DEAF_TO = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGABRT)  # systemd and terminals tell the whole group

log = logging.getLogger("edge_runtime.acting.supervisor")


@dataclass(frozen=True)
class StopOrder:
    """The arm to stop: how, and through which descriptor."""

    plan: StopPlan
    fd: int


class InheritedPort(Port):
    """A serial port that the runtime opened."""

    def __init__(self, fd: int) -> None:
        super().__init__("the runtime's port")
        self._fd = fd

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    def open(self) -> None:
        """It is."""

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def main(link_fd: int, page_fd: int) -> int:
    for number in DEAF_TO:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, DEAF_TO)  # the runtime blocked them until here
    with logs.to_stderr(logging.INFO):  # as blocked as the runtime's may be
        return watch(socket.socket(fileno=link_fd), Page(page_fd))


def watch(link: socket.socket, page: Page) -> int:
    """Until there is no runtime any more, or the arm has been stopped; the exit code."""
    order: StopOrder | None = None
    while True:
        if order is not None and not is_ordered_before(link, page):
            return stop(order, page, "no tick of the loop came in time")
        message, fds, _, _ = socket.recv_fds(link, LONGEST_ORDER, 1)
        if not message:
            if order is None:
                return 0
            free(order.fd)
            return stop(order, page, "the runtime is gone")
        if message == ACT and order is not None:
            plan = replace(order.plan, policy="limp")  # what else it asks for has been tried
            return stop(replace(order, plan=plan), page, "the runtime could not let go of the arm")
        if order is not None:
            os.close(order.fd)
        order = None if message == STAND_DOWN else StopOrder(StopPlan.decode(message), fds[0])
        link.send(DONE)


def is_ordered_before(link: socket.socket, page: Page) -> bool:
    """Wait for an order, or the other end's end; False when the loop's time is up first. Sleeps until either."""
    while True:
        left_s = (page.patient_until_ns - time.monotonic_ns()) / 1e9
        if left_s <= 0:
            return False
        if select.select([link], [], [], min(left_s, LOOK_EVERY_S))[0]:
            return True


def free(fd: int) -> None:
    """Give up the exclusive use that the runtime asked for: on a pty it would outlive us too."""
    with contextlib.suppress(OSError):
        fcntl.ioctl(fd, termios.TIOCNXCL)


def stop(order: StopOrder, page: Page, why: str) -> int:
    """Take the arm from the loop and let it come to rest; the exit code."""
    page.fence()
    signal.setitimer(signal.ITIMER_REAL, order.plan.within_s + LATE_S)  # then we end, whatever became of the servos
    log.warning("%s: %s", why, order.plan.policy)
    try:
        with Bus(InheritedPort(order.fd), timeout_s=order.plan.timeout_s, echo=order.plan.echo) as bus:
            carry_out(bus, order.plan, threading.Event(), Clock())
    except DeviceError as error:
        log.error("stop policy: %s", error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
