"""The runtime's side of the supervisor: start it, give it the arm to watch over, and take the arm back."""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
import threading
from contextlib import AbstractContextManager, nullcontext, suppress
from types import TracebackType

from edge_runtime.acting.supervisor.page import Page
from edge_runtime.acting.supervisor.process import ACT, DEAF_TO, DONE, STAND_DOWN
from edge_runtime.config import NoRobotConfig, StartConfig
from edge_runtime.errors import DeviceError
from edge_runtime.motors.stopping import StopPlan

ANSWER_S = 10.0  # for a process that still starts
STAND_DOWN_S = 1.0  # for one that only waits
GRACE_S = 2.0  # beyond what the stop policy takes, until we count as stuck

log = logging.getLogger(__name__)


def watch_over(config: StartConfig) -> AbstractContextManager[Supervisor | None]:
    """The process that stops the arm if the runtime cannot; none where the arm is to stay as it is, or is not there."""
    alone = config.dry_run or config.robot.stop_policy == "hold" or isinstance(config.robot, NoRobotConfig)
    return nullcontext() if alone else Supervisor()


class Supervisor:
    """A process that outlives this one, by as long as it takes to stop the arm. It ends with the context otherwise.

    `page` is what the loop must be given. Between `arm` and `stand_down` the arm is stopped whenever we end, or the
    loop ceases to tick; the supervisor has then ended, and the next `arm` starts another.
    """

    def __init__(self) -> None:
        self.page = Page.create()
        self._plan = StopPlan("limp", {})
        self._watches = False
        self._start()

    def arm(self, fd: int, plan: StopPlan) -> None:
        """Have the arm behind the serial port `fd` stopped as `plan` says if we do not."""
        if self._process.poll() is not None:
            self._end()
            self._start()
        self._plan = plan
        self.page.reset(plan.within_s + GRACE_S)
        try:
            socket.send_fds(self._link, [plan.encode()], [fd])
            self._await_answer()
        except (OSError, EOFError) as error:
            raise DeviceError("the supervisor, which would stop the arm, does not answer") from error
        self._watches = True

    def stand_down(self) -> None:
        """The arm is at rest, or lost. Returns when the supervisor has let go of the port. Twice is harmless."""
        self._watches = False
        try:
            self._link.settimeout(STAND_DOWN_S)
            self._link.send(STAND_DOWN)
            self._await_answer()
            self._link.settimeout(ANSWER_S)
        except TimeoutError:
            if not self.has_acted:  # then it will end by itself: it may be in the midst of it
                self._process.kill()  # stopped, or stuck
            self._end()
        except (OSError, EOFError):  # it has ended
            self._end()

    def act(self) -> bool:
        """Have the arm let go of now, since we could not; whether that was confirmed. The supervisor has then ended."""
        if not self._watches:  # it knows of no arm
            self.stand_down()
            return False
        self._watches = False
        with suppress(OSError):  # it has ended
            self._link.send(ACT)
        self._end()
        return self._process.returncode == 0

    @property
    def has_acted(self) -> bool:
        return self.page.is_fenced

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        self._link.close()
        try:
            self._process.wait(self._plan.within_s + ANSWER_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _start(self) -> None:
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link.settimeout(ANSWER_S)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, DEAF_TO)  # it inherits the mask, until it can ignore them
        try:
            fds = (theirs.fileno(), self.page.fd)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "edge_runtime.acting.supervisor.process", *map(str, fds)],
                pass_fds=fds,
                start_new_session=True,  # what a terminal sends, also by Ctrl-\ and Ctrl-Z, is for us
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
        threading.Thread(target=self._watch_exit, args=(self._process,), name="supervisor", daemon=True).start()

    def _watch_exit(self, process: subprocess.Popen[bytes]) -> None:
        """Say so when it ends before its time: the arm goes on, and nothing stops it if the runtime is killed."""
        code = process.wait()
        if self._watches and not self.has_acted:
            log.error("the supervisor has ended (%d): until the next start nobody stops the arm if we are killed", code)

    def _await_answer(self) -> None:
        if self._link.recv(len(DONE)) != DONE:
            raise EOFError
