"""The life of an arm in real time: its runtime and its supervisor are processes, and a signal strikes one of them."""

from __future__ import annotations

import logging
import multiprocessing
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from edge_runtime.acting.arm import Arm
from edge_runtime.acting.supervisor.client import Supervisor, watch_over
from edge_runtime.acting.supervisor.page import Page
from edge_runtime.errors import DeviceError, EdgeRuntimeError
from edge_runtime.motors.feetech import Frame
from edge_runtime.program.signals import handling_signals
from edge_runtime.robots import Vector
from edge_runtime.virtual_arm.calibration import write_calibration
from edge_runtime.virtual_arm.chain import Heard
from scripts.rig.program import as_hardware
from scripts.rig.steps.life import (
    RUN_S,
    SHORT_RUN_S,
    Account,
    Step,
    WatchedFollower,
    assemble,
    lay,
    plan,
    settings,
    weights,
)
from scripts.rig.steps.line import StepBus

STOPPED_S = 0.5
OVER_S = 120.0  # runtime and supervisor have ended by then, or never will
FALL_S = 0.2  # in which an arm that is let go of moves
LOOK_S = 0.005

_KILLED_LATER_S = [0.05 * step for step in range(1, 13)]  # from the first step of a ramp to beyond its last
_PARTS = ("", "start", "run", "limp", "park", "hold")
_PART, _PARTS_TOLD, _FAULTS, _PAGE, _RUNTIME, _SUPERVISOR = range(6)  # words that the runtime's process tells

_context = multiprocessing.get_context("forkserver")


class Runtime:
    """The runtime's process: the arm and all that belongs to it, for as long as its part takes."""

    def __init__(self, told: Any, folder: Path, port: str, step: Step, supervisor: Supervisor | None) -> None:
        self._told, self._step, self._supervisor = told, step, supervisor
        told[_RUNTIME] = os.getpid()
        if supervisor is not None:
            told[_PAGE], told[_SUPERVISOR] = supervisor.page.fd, supervisor._process.pid
        self._stop, self._hurry = threading.Event(), threading.Event()
        config = settings(folder, step.policy, port=port)
        self._config, self._runs = config.robot, 0
        self._robot = WatchedFollower(config.robot, enter=self._enter)
        page = None if supervisor is None else supervisor.page.words
        self._planner, self._loop, self._reporter = assemble(config, self._robot, page, folder)

    def live(self) -> None:
        """Until the arm is at rest; raises what the run ended with."""
        failures: list[EdgeRuntimeError] = []

        def run() -> None:
            try:
                arm.run()
            except EdgeRuntimeError as error:
                failures.append(error)

        with handling_signals(self._heed, signal.SIGTERM), self._robot:
            arm = Arm(
                self._robot,
                self,  # type: ignore[arg-type]
                self._config,
                self._reporter,
                stop=self._stop,
                hurry=self._hurry,
                supervisor=self._supervisor,
            )
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
        if failures:
            raise failures[0]

    # what the arm takes for its loop

    def check_realtime(self) -> None:
        self._loop.check_realtime()

    def prime(self, pose: Vector) -> None:
        self._loop.prime(pose)

    def run(self) -> None:
        """The loop, with a plan the first time, until it is stopped or this process is struck."""
        self._runs += 1
        first = self._runs == 1
        if first:
            self._planner.ring.merge(0, plan(), self._planner._session)
        lasts_s = RUN_S if first and self._step.part == "run" else SHORT_RUN_S
        end = threading.Timer(lasts_s, self._give_up if first and self._step.part == "supervisor" else self._loop.stop)
        end.start()
        try:
            self._loop.run()
        finally:
            end.cancel()
            self._told[_FAULTS] = self._reporter.count
        self._stop.set()

    def _give_up(self) -> None:
        """The supervisor must act. It may fail at that only where this process goes on later."""
        os.kill(os.getpid(), signal.SIGKILL if self._step.kind == "stopped" else signal.SIGSTOP)

    def _heed(self, number: int) -> None:
        """As the product does: the first signal ends the run, a second makes the arm limp at once."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()
        self._loop.stop()

    def _enter(self, part: str) -> None:
        self._told[_FAULTS] = self._reporter.count
        self._told[_PART] = _PARTS.index(part)
        self._told[_PARTS_TOLD] += 1


def lead(told: Any, said: Connection, folder: Path, port: str, step: Step) -> None:
    """In the runtime's process: `told` is what its servos know of it, `said` takes its words and its supervisor's."""
    os.dup2(said.fileno(), sys.stderr.fileno())
    said.close()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(relativeCreated)d %(message)s", force=True)
    try:
        with watch_over(settings(folder, step.policy)) as supervisor:
            Runtime(told, folder, port, step, supervisor).live()
    except EdgeRuntimeError as error:
        logging.error("%s", error)
        sys.exit(error.exit_code)


class ToldBus(StepBus):
    """Servos behind a pty that know what the processes at the other end do, and let a signal strike them."""

    def __init__(self, told: Any, step: Step) -> None:
        super().__init__(wire_time=True, weights=weights(step))
        self._told, self._step = told, step
        self._counted = {"first start": "start", "stop": step.policy}.get(step.part, step.part)
        self._parts_heard, self._counts = -1, False
        self._page: Page | None = None
        self._fenced = False
        self._processes: dict[str, int] = {}  # pidfds
        self._later: list[threading.Timer] = []
        self.reached = False
        self.strike = self._strike

    def hear(self, request: Frame, baud: int = 1_000_000) -> Heard:
        with self._lock:
            self._listen()
            return super().hear(request, baud)

    def leave(self) -> None:
        """Nothing is struck any more; the processes that are left are killed."""
        for timer in self._later:
            timer.cancel()
            timer.join()
        for who, process in self._processes.items():
            self._send(who, signal.SIGKILL)
            os.close(process)
        if self._page is not None:
            os.close(self._page.fd)

    def _listen(self) -> None:
        """Which part is this? That of the supervisor once the arm is its own, or else what the runtime says."""
        if self._parts_heard < 0:
            self._meet()
        if self._told[_PARTS_TOLD] != self._parts_heard:
            self._parts_heard = self._told[_PARTS_TOLD]
            self._come_to(_PARTS[self._told[_PART]], _PARTS[self._told[_PART]])
        was, self._fenced = self._fenced, self._page is not None and self._page.is_fenced
        if self._fenced and not was:
            self._come_to(self._step.policy, "supervisor")

    def _meet(self) -> None:
        """The first request: both processes are there."""
        self._parts_heard = 0
        lay(self, self._step)
        runtime, supervisor, page = (self._told[word] for word in (_RUNTIME, _SUPERVISOR, _PAGE))
        with suppress(ProcessLookupError, FileNotFoundError):  # one of them has ended meanwhile
            self._processes["runtime"] = os.pidfd_open(runtime)
            if supervisor:
                self._processes["supervisor"] = os.pidfd_open(supervisor)
                self._page = Page(os.open(f"/proc/{runtime}/fd/{page}", os.O_RDWR))

    def _come_to(self, part: str, counted: str) -> None:
        self.enter(part)
        if counted == self._counted and not self._counts:
            self._counts = True
            self.arm_at(self._step.at, self._step.kind)

    def _strike(self, kind: str) -> None:
        self.reached = True
        who = "supervisor" if self._step.part == "supervisor" else "runtime"
        if kind == "killed":
            self._kill(who)
        elif kind == "terminated":
            self._send(who, signal.SIGTERM)
            self._after(_KILLED_LATER_S[self._step.at % len(_KILLED_LATER_S)], self._kill, who)
        elif kind == "stopped":
            self._send(who, signal.SIGSTOP)
            self._after(STOPPED_S, self._send, who, signal.SIGCONT)

    def _kill(self, who: str) -> None:
        self._send(who, signal.SIGKILL)
        if who == "supervisor":  # a hanging runtime without one goes on
            self._send("runtime", signal.SIGCONT)

    def _send(self, who: str, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, KeyError):  # it has ended, maybe before it was known
            signal.pidfd_send_signal(self._processes[who], number)

    def _after(self, seconds: float, act: Callable[..., None], *what: Any) -> None:
        self._later.append(threading.Timer(seconds, act, what))
        self._later[-1].start()


def live(folder: Path, step: Step) -> Account | None:
    """Live through `step` in real time; None where its transaction never came. `folder` is for the calibration."""
    if not (folder / "virtual.json").exists():
        write_calibration(folder, "virtual")
    told = _context.RawArray("q", 6)
    said, words = _context.Pipe(duplex=False)
    with ExitStack() as stack:
        with as_hardware():
            bus = stack.enter_context(ToldBus(told, step))
            late = stack.enter_context(lateness())
        stack.enter_context(said)
        runtime = _context.Process(target=lead, args=(told, words, folder, bus.path, step))
        runtime.start()
        words.close()
        text, ended = _all_of(said.fileno(), OVER_S)
        time.sleep(FALL_S)
        bus.advance()
        bus.leave()
        runtime.join()
        error = DeviceError(text) if (runtime.exitcode or 0) > 0 or "torque may still be on" in text else None
        account = Account(
            step,
            list(bus.moments),
            list(bus.parts),
            list(bus.goals),
            faults=told[_FAULTS],
            error=error,
            torque=bus.values("Torque_Enable"),
            late_s=max(late),
            transactions=bus.count,
            ended=ended,
        )
    return account if bus.reached or not step.at else None


@contextmanager
def lateness() -> Iterator[list[float]]:
    """By how many seconds this machine lets a thread oversleep meanwhile, the longest among them."""
    found, over = [0.0], threading.Event()

    def look() -> None:
        began = time.monotonic()
        while not over.wait(LOOK_S):
            now = time.monotonic()
            found[0] = max(found[0], now - began - LOOK_S)
            began = now

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def _all_of(fd: int, within_s: float) -> tuple[str, bool]:
    """What comes from `fd`, and whether it ended in time: with the last process that could write to it."""
    text, until = b"", time.monotonic() + within_s
    while select.select([fd], [], [], max(until - time.monotonic(), 0.0))[0]:
        data = os.read(fd, 4096)
        if not data:
            return text.decode(errors="replace"), True
        text += data
    return text.decode(errors="replace"), False
