"""Who is served when, with whom, and what happens to the others when it goes wrong."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edge_runtime.errors import ModelError
from policy_server.serving.scheduler import Scheduler, Timing, Work, batch_sizes


class Books:
    """A ledger: the sizes of the batches served, and how many were halved."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.halvings = 0

    def served(self, batch: Sequence[Work], began_s: float, ended_s: float) -> None:
        self.batches.append(len(batch))

    def halved(self) -> None:
        self.halvings += 1


class Echo:
    """An engine that answers each state with itself, behind a gate; `log` holds the batches in their order."""

    provider = "echo"

    def __init__(self) -> None:
        self.gate = threading.Semaphore(0)
        self.entered: queue.SimpleQueue[list[float]] = queue.SimpleQueue()
        self.spoil: Callable[[list[float]], None] = lambda states: None

    def infer(self, batch: Mapping[str, Any]) -> Any:
        states = batch["observation.state"][:, 0].tolist()
        self.entered.put(states)
        assert self.gate.acquire(timeout=10)
        self.spoil(states)
        return batch["observation.state"][:, None, :]

    def warm_up(self, batch_sizes: Sequence[int], progress: Callable[[str], None]) -> None:
        progress("echo")


class Asker:
    """A source that has one thing, and keeps what became of it."""

    def __init__(self, name: float, urgency: float = 0.0, share: tuple[Any, ...] = ()) -> None:
        self.name = name
        self.share = share or (self,)
        self.urgency = urgency
        self.answers: queue.SimpleQueue[tuple[Any, Timing] | Exception] = queue.SimpleQueue()

    def take(self) -> Work | None:
        inputs = {"observation.state": np.array([self.name], np.float32)}
        now_s = time.monotonic()
        return Work(inputs, now_s, now_s, lambda actions, timing: self.answers.put((actions, timing)), self.answers.put)

    def answer(self) -> Any:
        return self.answers.get(timeout=5)


@contextmanager
def running(engine: Echo, books: Books | None = None, **settings: Any) -> Iterator[Scheduler]:
    scheduler = Scheduler("echo", lambda: engine, books or Books(), **settings)
    scheduler.start()
    with ExitStack() as stack:
        stack.callback(scheduler.stop)
        stack.callback(engine.gate.release, 1000)
        yield scheduler


@pytest.fixture
def engine() -> Echo:
    return Echo()


def test_the_engine_never_waits_for_company(engine: Echo) -> None:
    with running(engine) as scheduler:
        scheduler.submit(Asker(1))
        assert engine.entered.get(timeout=5) == [1]


def test_most_urgent_first_and_no_more_than_fit(engine: Echo) -> None:
    with running(engine, max_batch=2) as scheduler:
        scheduler.submit(Asker(0))
        engine.entered.get(timeout=5)
        for name in (3, 1, 4, 2, 5):
            scheduler.submit(Asker(name, urgency=name))
        engine.gate.release(4)
        assert [sorted(engine.entered.get(timeout=5)) for _ in range(3)] == [[1, 2], [3, 4], [5]]


def test_a_session_that_always_must_go_gets_no_more_than_its_turns(engine: Echo) -> None:
    """One that asks again at once and is always most urgent: another waits for one of its turns, not for all."""
    liar, honest = Asker(1, urgency=-1e9), Asker(2, urgency=1e9)
    with running(engine, max_batch=1) as scheduler:
        served = []
        for _ in range(6):
            scheduler.submit(liar)
            scheduler.submit(honest)
            engine.gate.release()
            served += engine.entered.get(timeout=5)
        assert sorted(served[:2]) == [1, 2]
        assert served.count(2) == 3


def test_eight_sessions_of_one_address_have_one_share(engine: Echo) -> None:
    """And share that among themselves."""
    liars = [Asker(name, urgency=-1e9, share=("address 192.0.2.7", name)) for name in range(8)]
    honest = Asker(-1, share=("address 192.0.2.8", -1))
    with running(engine, max_batch=1) as scheduler:
        scheduler.submit(Asker(100))
        engine.entered.get(timeout=5)
        served = []
        for _ in range(16):
            for each in (*liars, honest):
                scheduler.submit(each)
            engine.gate.release()
            served += engine.entered.get(timeout=5)
    assert served.count(-1) == 8
    assert sorted(name for name in served if name >= 0) == list(range(8))


def test_who_asks_seldom_is_next_and_saves_up_nothing(engine: Echo) -> None:
    busy, seldom = Asker(1), Asker(2)
    with running(engine, max_batch=1) as scheduler:
        served = []
        for turn in range(12):
            scheduler.submit(busy)
            if turn >= 6:
                scheduler.submit(seldom)
            engine.gate.release()
            served += engine.entered.get(timeout=5)
    assert served[:6] == [1] * 6
    assert served[7:].count(1) in (2, 3)


def test_nobody_starves_behind_those_who_come_later(engine: Echo) -> None:
    """Urgency is a time: a stream of fresh ones, each 1 s ahead, overtakes an ordinary one for that second only."""
    patient = Asker(-1, urgency=2.5)
    with running(engine, max_batch=1) as scheduler:
        scheduler.submit(Asker(0))
        engine.entered.get(timeout=5)
        scheduler.submit(patient)
        served = []
        for now in range(6):
            scheduler.submit(Asker(now, urgency=now - 1.0))
            engine.gate.release()
            served += engine.entered.get(timeout=5)
        assert served == [0, 1, 2, 3, -1, 4]


def test_a_window_gathers_company(engine: Echo) -> None:
    with running(engine, max_batch=3, batch_window_s=10.0) as scheduler:
        for name in (1, 2, 3):
            scheduler.submit(Asker(name))
        assert sorted(engine.entered.get(timeout=5)) == [1, 2, 3]


def test_a_window_ends(engine: Echo) -> None:
    with running(engine, batch_window_s=0.05) as scheduler:
        scheduler.submit(Asker(1))
        assert engine.entered.get(timeout=5) == [1]


def test_one_that_raises_spoils_no_batch(engine: Echo) -> None:
    def spoil(states: list[float]) -> None:
        if 3 in states:
            raise ValueError("three")

    engine.spoil = spoil
    engine.gate.release(100)
    askers = [Asker(name) for name in range(1, 6)]
    with running(engine, max_batch=5, batch_window_s=10.0) as scheduler:
        for asker in askers:
            scheduler.submit(asker)
        for asker in askers:
            answer = asker.answer()
            if asker.name == 3:
                assert str(answer) == "three"
            else:
                assert answer[0].tolist() == [[asker.name]]


def test_a_batch_that_is_too_large_is_halved_logged_counted_and_served(
    engine: Echo, caplog: pytest.LogCaptureFixture
) -> None:
    def spoil(states: list[float]) -> None:
        if len(states) > 2:
            raise MemoryError("no room for 4")

    engine.spoil = spoil
    engine.gate.release(100)
    askers, books = [Asker(name) for name in range(4)], Books()
    with running(engine, books, max_batch=4, batch_window_s=10.0) as scheduler:
        for asker in askers:
            scheduler.submit(asker)
        assert [asker.answer()[1].batch for asker in askers] == [2, 2, 2, 2]
    assert (books.halvings, books.batches) == (1, [2, 2])
    assert [record.getMessage() for record in caplog.records] == ["a batch of 4 failed and is halved: no room for 4"]


def test_the_stages_are_what_the_clock_says(engine: Echo) -> None:
    asker = Asker(1)
    with running(engine, inject_s=0.05) as scheduler:
        scheduler.submit(asker)
        engine.entered.get(timeout=5)
        entered_s = time.monotonic()
        engine.gate.release()
        _, timing = asker.answer()
        answered_s = time.monotonic()
    assert 0.05 <= timing.inject <= answered_s - entered_s
    assert timing.infer < answered_s - entered_s
    assert min(timing.wait, timing.prepare, timing.infer) >= 0


def test_an_injected_delay_holds_up_no_other_model(engine: Echo) -> None:
    quick, asker = Echo(), Asker(2)
    engine.gate.release(10)
    quick.gate.release(10)
    delayed = Asker(1)
    with running(engine, inject_s=5.0) as slow, running(quick) as fast:
        slow.submit(delayed)
        engine.entered.get(timeout=5)
        fast.submit(asker)
        assert asker.answer()[0].tolist() == [[2]]
        assert delayed.answers.empty()


def test_a_stop_does_not_wait_for_an_injected_delay(engine: Echo) -> None:
    engine.gate.release()
    asker = Asker(1)
    with running(engine, inject_s=60.0) as scheduler:
        scheduler.submit(asker)
        engine.entered.get(timeout=5)
    assert asker.answer()[1].inject < 10


def test_an_engine_that_cannot_be_had_is_told_to_who_waits_for_it() -> None:
    def open_engine() -> Any:
        raise OSError("no engine")

    scheduler = Scheduler("none", open_engine, Books())
    scheduler.start()
    with pytest.raises(OSError, match="no engine"):
        scheduler.warm.result(5)
    scheduler.stop()


def test_a_thread_that_dies_is_noticed(engine: Echo) -> None:
    class Broken(Asker):
        def take(self) -> Work | None:
            raise RuntimeError("a defect")

    with running(engine) as scheduler:
        scheduler.submit(Broken(1))
        with pytest.raises(RuntimeError, match="a defect"):
            scheduler.over.result(5)


def test_a_defect_while_answering_is_noticed(engine: Echo) -> None:
    class Broken(Asker):
        def take(self) -> Work | None:
            work = super().take()
            assert work is not None
            return replace(work, done=lambda actions, timing: [][0])

    with running(engine) as scheduler:
        scheduler.submit(Broken(1))
        engine.entered.get(timeout=5)
        scheduler.submit(Asker(2))
        engine.gate.release(100)
        with pytest.raises(IndexError):
            scheduler.over.result(5)


def test_a_source_that_has_gone_is_passed_over(engine: Echo) -> None:
    class Gone(Asker):
        def take(self) -> Work | None:
            return None

    with running(engine) as scheduler:
        scheduler.submit(Gone(1))
        scheduler.submit(Asker(2))
        assert engine.entered.get(timeout=5) == [2]


def test_another_engine_takes_over_when_the_batch_under_way_is_answered(engine: Echo) -> None:
    other, first, second = Echo(), Asker(1), Asker(2)
    taken_over: queue.SimpleQueue[bool] = queue.SimpleQueue()
    with running(engine) as scheduler:
        scheduler.submit(first)
        engine.entered.get(timeout=5)
        warm = scheduler.replace(lambda: other, lambda: taken_over.put(first.answers.empty()))
        scheduler.submit(second)
        engine.gate.release()
        other.gate.release()
        assert warm.result(5) == "echo"
        assert taken_over.get(timeout=5) is False  # the old batch was answered before
        assert other.entered.get(timeout=5) == [2]
        assert second.answer()[0].tolist() == [[2]]
        assert engine.entered.empty()
        assert not scheduler.over.done()
    assert scheduler.over.result(5) is None


def test_a_replacement_that_cannot_be_had_changes_nothing(engine: Echo) -> None:
    def open_engine() -> Any:
        raise OSError("no engine")

    def take_over() -> None:
        raise AssertionError

    asker = Asker(1)
    engine.gate.release()
    with running(engine) as scheduler:
        with pytest.raises(OSError, match="no engine"):
            scheduler.replace(open_engine, take_over).result(5)
        scheduler.submit(asker)
        assert asker.answer()[0].tolist() == [[1]]
        assert not scheduler.over.done()


def test_a_replacement_that_is_warm_too_late_serves_nobody(engine: Echo) -> None:
    may_open = threading.Event()

    def open_engine() -> Any:
        assert may_open.wait(5)
        return Echo()

    with running(engine) as scheduler:
        scheduler.warm.result(5)
        warm = scheduler.replace(open_engine, lambda: None)
    assert scheduler.over.result(5) is None
    may_open.set()
    with pytest.raises(ModelError, match="echo: the server is stopping"):
        warm.result(5)


def test_a_defect_while_taking_over_is_noticed(engine: Echo) -> None:
    def take_over() -> None:
        raise RuntimeError("a defect")

    with running(engine) as scheduler:
        scheduler.replace(Echo, take_over)
        with pytest.raises(RuntimeError, match="a defect"):
            scheduler.over.result(5)


def test_batch_sizes_that_are_warmed_up() -> None:
    assert batch_sizes(1) == [1]
    assert batch_sizes(8) == [1, 2, 4, 8]
    assert batch_sizes(6) == [1, 2, 4, 6]
