"""What ends a program from outside: a signal, or the end of its stdin."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)


@contextmanager
def handling_signals(act: Callable[[int], None], *numbers: int) -> Iterator[None]:
    """Call `act` with the number of each of these signals that arrives while the context lasts; main thread only.

    A handler runs between two lines of the main thread, maybe inside the very lock that it would take: setting an event
    that the main thread is about to wait for is then a wait for ever. So a thread acts, told through a pipe, which
    also reaches it while the main thread is deep in a library.
    """
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    thread = threading.Thread(target=_act_on, args=(readable, act, numbers), name="signals", daemon=True)
    told_before = signal.set_wakeup_fd(writable)
    before = {number: signal.signal(number, lambda number, frame: None) for number in numbers}
    thread.start()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(told_before)
        os.close(writable)
        thread.join()
        os.close(readable)


def _act_on(readable: int, act: Callable[[int], None], numbers: tuple[int, ...]) -> None:
    while arrived := os.read(readable, 1):
        if arrived[0] not in numbers:
            continue
        try:
            act(arrived[0])
        except Exception:  # the next signal must still be heard: the second is the one that makes the arm limp
            log.exception("signal %d could not be acted on", arrived[0])


def at_end_of_stdin(act: Callable[[], None]) -> None:
    """Call `act`, in a thread, when stdin is closed: a child then ends with its parent."""

    def read() -> None:
        while os.read(0, 4096):
            pass
        act()

    threading.Thread(target=read, name="stdin", daemon=True).start()
