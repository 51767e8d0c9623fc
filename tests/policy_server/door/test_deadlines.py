"""Deadlines that are set and cleared from many threads at once: none is forgotten, none that was cleared comes."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from policy_server.door.deadlines import Deadlines

THREADS, EACH = 8, 500


def test_none_is_forgotten_however_many_set_them_at_once() -> None:
    deadlines = Deadlines()
    deadlines.start()
    called: Counter[tuple[int, int]] = Counter()
    cleared: list[object] = []
    all_here = threading.Semaphore(0)

    def one(thread: int) -> None:
        for number in range(EACH):
            key = (thread, number)
            deadlines.set((key, "cleared"), 60.0, lambda: cleared.append(0))

            def passed(key: tuple[int, int] = key) -> None:
                called[key] += 1
                all_here.release()

            deadlines.set(key, 0.001 * (number % 40), passed)
            deadlines.clear((key, "cleared"))

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(one, range(THREADS)))
    for _ in range(THREADS * EACH):
        assert all_here.acquire(timeout=10)
    deadlines.stop()
    assert set(called.values()) == {1}
    assert cleared == []


def test_what_is_set_and_cleared_for_each_message_wakes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first of its kind does: the thread then sleeps no longer than the shortest time anybody gave."""
    deadlines = Deadlines()
    slept: queue.SimpleQueue[float | None] = queue.SimpleQueue()
    woken: list[object] = []
    condition = deadlines._changed
    wait, notify = condition.wait, condition.notify
    monkeypatch.setattr(condition, "wait", lambda timeout=None: (slept.put(timeout), wait(timeout)))
    monkeypatch.setattr(condition, "notify", lambda: (woken.append(0), notify()))
    deadlines.start()
    assert slept.get(timeout=5) is None
    deadlines.set("idle", 600.0, lambda: None)
    assert slept.get(timeout=5) == pytest.approx(600, abs=5)
    deadlines.set("sending", 10.0, lambda: None)
    deadlines.clear("sending")
    assert slept.get(timeout=5) == pytest.approx(10, abs=5)
    for _ in range(100):
        deadlines.set("sending", 10.0, lambda: None)
        deadlines.clear("sending")
    assert len(woken) == 2
    deadlines.stop()


def test_a_callback_that_raises_is_told_and_the_next_are_still_called(caplog: pytest.LogCaptureFixture) -> None:
    def explode() -> None:
        raise RuntimeError("the outbox is on fire")

    deadlines, fired = Deadlines(), threading.Event()
    deadlines.start()
    deadlines.set("bad", 0.0, explode)
    deadlines.set("good", 0.01, fired.set)
    assert fired.wait(20)
    deadlines.stop()
    assert "the outbox is on fire" in caplog.text
