"""Signals as events: the lock that the main thread holds when one arrives is not waited for by the main thread."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

from edge_runtime.config import NoRobotConfig, StartConfig
from edge_runtime.program.signals import handling_signals
from edge_runtime.runtime import Runtime

IN_THE_LOCK = """
import signal, threading
from edge_runtime.config import NoRobotConfig, StartConfig
from edge_runtime.runtime import Runtime
from edge_runtime.program.signals import handling_signals

runtime = Runtime(StartConfig(robot=NoRobotConfig()))
with handling_signals(runtime._heed, signal.SIGTERM):
    with runtime._stop._cond:  # where the main thread is for a moment whenever it begins to wait
        signal.raise_signal(signal.SIGTERM)
    runtime._stop.wait()
print("ended")
"""


def test_a_signal_that_comes_inside_the_lock_of_the_event_it_sets_ends_the_run() -> None:
    run = subprocess.run([sys.executable, "-c", IN_THE_LOCK], capture_output=True, text=True, timeout=20, check=False)
    assert (run.returncode, run.stdout) == (0, "ended\n"), run.stderr


def test_a_second_signal_is_in_a_hurry_unless_a_window_was_closed_or_the_run_had_ended() -> None:
    closed, ended = (Runtime(StartConfig(robot=NoRobotConfig())) for _ in range(2))
    for _ in range(2):  # a shell passes SIGHUP on, and the kernel sends it again
        closed._heed(signal.SIGHUP)
    assert not closed._hurry.is_set()
    closed._heed(signal.SIGINT)
    assert closed._hurry.is_set()
    ended.stop()
    ended._heed(signal.SIGINT)
    assert not ended._hurry.is_set()
    ended._heed(signal.SIGINT)
    assert ended._hurry.is_set()


def test_each_signal_is_acted_on_in_a_thread_in_the_order_of_arrival() -> None:
    seen: list[tuple[int, str]] = []
    both = threading.Event()

    def act(number: int) -> None:
        seen.append((number, threading.current_thread().name))
        if len(seen) == 2:
            both.set()

    with handling_signals(act, signal.SIGHUP, signal.SIGUSR1):
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGUSR1)
        assert both.wait(10)
    assert seen == [(signal.SIGHUP, "signals"), (signal.SIGUSR1, "signals")]


def test_the_signals_are_as_before_after_it() -> None:
    files = len(os.listdir("/proc/self/fd"))
    before = signal.getsignal(signal.SIGUSR1)
    with handling_signals(lambda number: None, signal.SIGUSR1):
        assert signal.getsignal(signal.SIGUSR1) is not before
    assert signal.getsignal(signal.SIGUSR1) is before
    assert signal.set_wakeup_fd(-1) == -1
    assert len(os.listdir("/proc/self/fd")) == files


def test_a_signal_that_could_not_be_acted_on_does_not_make_the_next_unheard() -> None:
    heard = threading.Event()

    def act(number: int) -> None:
        if number == signal.SIGHUP:
            raise RuntimeError("no words left")
        heard.set()

    with handling_signals(act, signal.SIGHUP, signal.SIGUSR1):
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGUSR1)
        assert heard.wait(20)
