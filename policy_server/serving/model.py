"""One policy on offer: the scheduler that runs it, the sessions it runs for, and what it has done."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import grpc

from edge_runtime.errors import ConfigError
from edge_runtime.wire.messages import RECEIVED, Hello, Welcome
from policy_server.door.admission import Fault
from policy_server.engines import Engine, Source
from policy_server.engines.providers import NAMES
from policy_server.serving.cleaning import match_keys
from policy_server.serving.fairness import DecodingTurns, Share
from policy_server.serving.load import Load
from policy_server.serving.model_stats import ModelStats
from policy_server.serving.outbox import Outbox
from policy_server.serving.scheduler import Scheduler, Work
from policy_server.serving.session import Session

log = logging.getLogger(__name__)


class Model:
    """Keeps the name under which it is offered; what is behind it can be replaced. `batching` is the scheduler's."""

    def __init__(
        self, source: Source, open_engine: Callable[[Source], Engine], decoding: DecodingTurns, **batching: Any
    ) -> None:
        self._decoding = decoding
        self.name = source.policy.name
        self.policy = source.policy
        self._observations = source.n_obs_steps
        self.stats = ModelStats()
        self._open_engine = open_engine
        self._load = Load(time.monotonic())
        self._lock = threading.Lock()  # over the sessions, and which policy they run
        self._sessions: set[Session] = set()
        self._unloaded = False
        if not source.batched:
            batching["max_batch"] = 1
        self.scheduler = Scheduler(self.name, partial(open_engine, source), self, **batching)

    @property
    def sessions(self) -> int:
        return len(self._sessions)

    @property
    def wires(self) -> Counter[str]:
        """Its sessions by the wire they came on; empty is our own."""
        with self._lock:
            return Counter(session.wire for session in self._sessions)

    @property
    def waiting_s(self) -> float:
        """The age of the observation that waits longest."""
        with self._lock:
            return max((session.waiting_s for session in self._sessions), default=0.0)

    @property
    def overloaded(self) -> bool:
        return self._load.is_overloaded(time.monotonic())

    def open_session(self, hello: Hello, name: str, outbox: Outbox, share: Share, wire: str = "") -> Session:
        """A session for the robot that says `hello`, its welcome in the outbox; `wire` names a protocol not our own.

        Raises ProtocolError when robot and policy do not fit, Fault when the model cannot be loaded.
        """
        with self._lock:
            keys = match_keys(hello, self.policy)
            if self._unloaded:
                raise self._gone()
            if not self.scheduler.warm.done():
                raise Fault(grpc.StatusCode.UNAVAILABLE, f"model {self.name} is still warming up")
            if hello.guidance is not None and not self.policy.guided:
                reason = f"guidance: policy {self.name} cannot be guided (--rtc.enabled=false)"
                raise Fault(grpc.StatusCode.INVALID_ARGUMENT, reason)
            session = Session(
                hello,
                self.policy,
                keys,
                observations=self._observations,
                name=name,
                share=share,
                queue=self.scheduler,
                decoding=self._decoding,
                outbox=outbox,
                wire=wire,
            )
            outbox.put(Welcome(self.policy, (RECEIVED,)))
            self._sessions.add(session)
            return session

    def close_session(self, session: Session) -> None:
        with self._lock:
            self._sessions.discard(session)
        session.close()

    def replace(self, source: Source) -> Future[str]:
        """Load and warm up `source` beside what serves. Done once it serves, or holds why it does not."""
        return self.scheduler.replace(partial(self._open_beside, source), partial(self._turn_to, source))

    def unload(self) -> None:
        """End every session with the reason, then the engine."""
        with self._lock:
            self._unloaded = True
            for session in self._sessions:
                session.end(self._gone())
        self.scheduler.stop()

    def _open_beside(self, source: Source) -> Engine:
        """An engine beside the one that serves. Raises ConfigError for `auto`'s CPU where it would replace a GPU."""
        engine = self._open_engine(source)
        serves = self.scheduler.provider
        if engine.provider == NAMES["cpu"] and serves in (NAMES["cuda"], NAMES["tensorrt"]):
            raise ConfigError(
                f"providers: {self.name} runs on {serves}, the replacement would on {engine.provider}"
                " (has the GPU memory for both? the log says more)"
            )
        return engine

    def _turn_to(self, source: Source) -> None:
        """Between two batches: what comes from now on is of `source`. Those whom it does not fit hear why and leave."""
        policy = source.policy
        with self._lock:
            old, self.policy = self.policy, policy
            self._observations = source.n_obs_steps
            ended = 0
            for session in self._sessions:
                found = session.differences(policy)
                if found:
                    reason = f"{self.name} was replaced by one that does not fit: {'; '.join(found)}"
                    session.end(Fault(grpc.StatusCode.FAILED_PRECONDITION, reason))
                    ended += 1
                else:
                    session.move(policy, self._observations)
            moved = len(self._sessions) - ended
        log.info(
            "%s replaced: %s -> %s (sessions moved: %d, ended: %d)",
            self.name,
            old.digest.hex()[:12],
            policy.digest.hex()[:12],
            moved,
            ended,
        )

    def _gone(self) -> Fault:
        return Fault(grpc.StatusCode.NOT_FOUND, f"model {self.name} was unloaded")

    # The scheduler's ledger.

    def served(self, batch: Sequence[Work], began_s: float, ended_s: float) -> None:
        self.stats.served(len(batch), ended_s - began_s)
        before = self._load.overloaded
        late = sum(work.due_s < ended_s for work in batch)
        if not self._load.served(began_s, ended_s, late=late, chunks=len(batch)):
            return
        now = self._load.overloaded
        if now != before:
            log.log(
                logging.WARNING if now else logging.INFO,
                "%s %s (sessions: %d)",
                self.name,
                "is overloaded: chunks are ready too late" if now else "keeps up again",
                self.sessions,
            )
        if now or before:
            with self._lock:
                for session in self._sessions:
                    session.tell_pace(overloaded=now)

    def halved(self) -> None:
        self.stats.was_halved()
