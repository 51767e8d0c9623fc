"""Deadlines that are set and cleared from many threads at once: none is forgotten, none that was cleared comes."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from policy_server.deadlines import Deadlines

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


def test_what_is_set_and_cleared_for_each_message_wakes_nobody() -> None:
    """Only the first of its kind does: the thread then sleeps no longer than the shortest time anybody gave."""
    deadlines = Deadlines()
    looks = 0
    wait = deadlines._changed.wait

    def counted(timeout: float | None = None) -> bool:
        nonlocal looks
        looks += 1
        return wait(timeout)

    deadlines._changed.wait = counted  # type: ignore[method-assign]
    deadlines.start()
    for _ in range(1000):
        deadlines.set("idle", 600.0, lambda: None)
        deadlines.set("sending", 10.0, lambda: None)
        deadlines.clear("sending")
    deadlines.stop()
    assert looks < 10
