"""When an engine counts as asked for more than it can carry, and when no longer."""

from __future__ import annotations

from policy_server.serving.load import WINDOW_S, Load


def window(load: Load, since_s: float, *, busy: float, late: int, chunks: int = 10) -> float:
    """One whole window of equal batches of one; its end."""
    each_s = WINDOW_S / chunks
    for index in range(chunks):
        ended_s = since_s + (index + 1) * each_s
        judged = load.served(ended_s - busy * each_s, ended_s, late=index < late, chunks=1)
        assert judged == (index == chunks - 1)
    return ended_s


def test_a_busy_engine_whose_chunks_are_in_time_is_not_overloaded() -> None:
    load = Load(0.0)
    window(load, 0.0, busy=1.0, late=0)
    assert not load.overloaded


def test_late_chunks_of_an_engine_that_rests_are_no_overload() -> None:
    load = Load(0.0)
    window(load, 0.0, busy=0.5, late=10)  # robots that ask too late, or start with nothing
    assert not load.overloaded


def test_it_begins_and_ends_once_and_does_not_flicker() -> None:
    load = Load(0.0)
    now_s = window(load, 0.0, busy=0.95, late=1)
    assert load.overloaded
    now_s = window(load, now_s, busy=0.85, late=1)  # a little less is not over
    assert load.overloaded
    now_s = window(load, now_s, busy=0.95, late=0)
    assert not load.overloaded
    now_s = window(load, now_s, busy=0.95, late=1)
    assert load.overloaded
    window(load, now_s, busy=0.4, late=1)
    assert not load.overloaded


def test_an_engine_that_nobody_asks_any_more_is_not_overloaded() -> None:
    load = Load(0.0)
    now_s = window(load, 0.0, busy=1.0, late=10)
    assert load.is_overloaded(now_s)
    assert not load.is_overloaded(now_s + 5 * WINDOW_S)


def test_batches_longer_than_a_window_are_judged_each() -> None:
    load = Load(0.0)
    assert load.served(0.0, 3 * WINDOW_S, late=1, chunks=1)
    assert load.overloaded
