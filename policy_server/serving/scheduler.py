"""Sessions that have something -> a batch -> the engine -> answers; one thread for each model.

1. The engine never waits for company (unless `batch_window_s` says so): when it falls free it takes what is there.
2. Fair shares first, by turns: a name, an address, a session that had fewer chunks goes before one that had more. Among
   those that had as many, the most urgent first. What a robot says of its urgency moves it within a round only.
3. An engine can be replaced while it serves: the new one is loaded and warmed up beside it, and takes over between
   two batches. So a batch is of one engine, and so is everything that is answered from it.
4. A batch that raises is halved until the one that is to blame stands alone; the others get their chunks. So does a
   batch that is too large for the memory.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from edge_runtime.errors import ModelError
from edge_runtime.wire.messages import Floats
from policy_server.engines import Engine
from policy_server.serving.cleaning import Inputs, prepare
from policy_server.serving.fairness import FairOrder, Share

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Timing:
    """Seconds that one observation spent in each of the scheduler's stages, and how many shared its inference.

    `ready_s` is the monotonic time at which its chunk was there.
    """

    wait: float
    prepare: float
    infer: float
    inject: float
    batch: int
    ready_s: float


@dataclass(frozen=True)
class Work:
    """One observation's inputs, two monotonic times (it waits since, its robot runs dry at), and who hears of it."""

    inputs: Inputs
    since_s: float
    due_s: float
    done: Callable[[Floats, Timing], None]  # (chunk, joints) float32
    failed: Callable[[Exception], None]


class Source(Protocol):
    """A session that has something to run."""

    @property
    def share(self) -> Share:
        """Whose turns it takes."""

    @property
    def urgency(self) -> float:
        """The lesser goes first among those that had as many turns: a monotonic time in seconds."""

    def take(self) -> Work | None:
        """What is newest, which then is no longer there; None if it has gone."""


class Ledger(Protocol):
    """Who keeps the books. Called on the engine's thread."""

    def served(self, batch: Sequence[Work], began_s: float, ended_s: float) -> None: ...
    def halved(self) -> None: ...


class Scheduler:
    """Feeds one engine from many sources. `warm` is done once the engine serves, or holds why it cannot.

    `over` is done when the last engine's thread has ended; it holds an exception if that was not meant to be.
    """

    def __init__(
        self,
        name: str,
        open_engine: Callable[[], Engine],
        ledger: Ledger,
        *,
        max_batch: int = 8,
        batch_window_s: float = 0.0,
        inject_s: float = 0.0,
    ) -> None:
        self.over: Future[None] = Future()
        self.progress = "loading"
        self.provider = ""  # that of the engine which serves
        self._name = name
        self._ledger = ledger
        self._batch_since_s: float | None = None
        self._max_batch = max_batch
        self._batch_window_s = batch_window_s
        self._inject_s = inject_s
        self._ready = threading.Condition()
        self._sources: set[Source] = set()
        self._order = FairOrder()
        self._handing_over = threading.Lock()
        self._stopping = threading.Event()
        self._serving = _EngineThread(name, open_engine, lambda: True, self._run)
        self.warm = self._serving.warm

    def start(self) -> None:
        self._serving.thread.start()

    def stop(self) -> None:
        """Finish the batch under way and end; stopping twice is harmless."""
        with self._handing_over:
            self._stopping.set()
        self._end(self._serving)

    def replace(self, open_engine: Callable[[], Engine], take_over: Callable[[], None]) -> Future[str]:
        """Load and warm up another engine beside the one that serves. Done once it serves, or holds why it does not.

        `take_over` is called when it does: the last batch of the old one is answered, the first of the new one has not
        begun. One replacement at a time.
        """

        def succeed() -> bool:
            with self._handing_over:
                if not self._stopping.is_set():
                    self._end(self._serving)
                    take_over()
                    self._serving = new
                return self._serving is new

        new = _EngineThread(self._name, open_engine, succeed, self._run)
        new.thread.start()
        return new.warm

    def submit(self, source: Source) -> None:
        """`source` has something. It is asked for it once, when its turn comes."""
        with self._ready:
            self._sources.add(source)
            self._ready.notify()

    @property
    def busy_s(self) -> float:
        """For how long it has been at the batch under way; 0 when idle."""
        since_s = self._batch_since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def _end(self, engine_thread: _EngineThread) -> None:
        with self._ready:
            engine_thread.over.set()
            self._ready.notify_all()
        if engine_thread.thread.ident is not None:
            engine_thread.thread.join()

    def _run(self, engine_thread: _EngineThread) -> None:
        # Loading and warming up are on the thread that serves: CUDA keeps its handles and graphs by thread.
        try:
            engine = engine_thread.open_engine()
            engine.warm_up(batch_sizes(self._max_batch), self._note)
        except Exception as error:  # raised again in the thread that waits for `warm`
            engine_thread.warm.set_exception(error)
            return
        try:
            if not engine_thread.succeed():
                engine_thread.warm.set_exception(ModelError(f"{self._name}: the server is stopping"))
                return
            self.provider = engine.provider
            engine_thread.warm.set_result(engine.provider)
            while self._serve_next(engine, engine_thread.over):
                pass
            if self._stopping.is_set():
                self.over.set_result(None)
        except Exception as error:  # a defect of ours: the program has to end, not to look as if it served
            self.over.set_exception(error)

    def _serve_next(self, engine: Engine, over: threading.Event) -> bool:
        """Wait for a batch and run it; False when this engine's time is over. Between two batches it holds neither."""
        sources = self._next(over)
        batch = [work for source in sources if (work := source.take())]
        if batch:
            self._batch_since_s = time.monotonic()
            self._serve(engine, batch)
            self._batch_since_s = None
        return bool(sources)

    def _note(self, progress: str) -> None:
        self.progress = progress

    def _next(self, over: threading.Event) -> list[Source]:
        """The sources whose turn it is, once there are any; none = this engine's time is over."""
        with self._ready:
            self._ready.wait_for(lambda: self._sources or over.is_set())
            if self._batch_window_s:
                self._ready.wait_for(
                    lambda: len(self._sources) >= self._max_batch or over.is_set(), self._batch_window_s
                )
            if over.is_set():
                return []
            chosen: list[Source] = []
            while self._sources and len(chosen) < self._max_batch:
                source = self._order.pick(self._sources)
                self._order.charge(source.share)
                self._sources.remove(source)
                chosen.append(source)
            return chosen

    def _serve(self, engine: Engine, batch: Sequence[Work]) -> None:
        taken_s = time.monotonic()
        try:
            inputs = prepare([work.inputs for work in batch])
            prepared_s = time.monotonic()
            actions = engine.infer(inputs)
            inferred_s = time.monotonic()
            if len(actions) != len(batch):
                raise RuntimeError(f"the engine gave {len(actions)} chunks for {len(batch)} observations")
        except Exception as error:  # an engine may raise anything; it ends in an answer and in the log
            if len(batch) == 1:
                batch[0].failed(error)
                return
            log.warning("a batch of %d failed and is halved: %s", len(batch), error)
            self._ledger.halved()
            middle = len(batch) // 2
            self._serve(engine, batch[:middle])
            self._serve(engine, batch[middle:])
            return
        if self._inject_s:
            self._stopping.wait(self._inject_s)
        ready_s = time.monotonic()
        for work, chunk in zip(batch, actions, strict=True):
            work.done(
                chunk,
                Timing(
                    wait=taken_s - work.since_s,
                    prepare=prepared_s - taken_s,
                    infer=inferred_s - prepared_s,
                    inject=ready_s - inferred_s,
                    batch=len(batch),
                    ready_s=ready_s,
                ),
            )
        self._ledger.served(batch, taken_s, time.monotonic())


class _EngineThread:
    """One engine's time at the queue, on a thread of its own: load it, succeed the one before, serve until `over`.

    `succeed` is False when it is too late for that.
    """

    def __init__(
        self,
        name: str,
        open_engine: Callable[[], Engine],
        succeed: Callable[[], bool],
        run: Callable[[_EngineThread], None],
    ) -> None:
        self.open_engine = open_engine
        self.succeed = succeed
        self.warm: Future[str] = Future()  # the provider's name
        self.over = threading.Event()  # leave after the batch under way
        self.thread = threading.Thread(target=run, args=(self,), name=f"engine-{name}", daemon=True)


def batch_sizes(max_batch: int) -> list[int]:
    """What is warmed up: powers of two, and `max_batch` itself."""
    return sorted({max_batch, *(1 << power for power in range(max_batch.bit_length()) if 1 << power <= max_batch)})
