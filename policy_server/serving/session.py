"""One robot on the server: its key map, its filter, its one-place slot, its last observations and its outbox.

Each observation gets exactly one answer: a chunk, skipped, or a failure. The slot keeps the observation of the
greatest timestep. That one must go is remembered until the slot is emptied, also when the frame that said so was
dropped; so is the earliest deadline. When another policy takes over, what waits is run by it. What was in the slot is
kept for a policy that looks at several observations, until the robot begins another session or episode.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections import Counter, deque
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np

from edge_runtime.errors import ModelError, ProtocolError
from edge_runtime.program.logs import Sparing
from edge_runtime.wire.fit import successor_differences
from edge_runtime.wire.messages import (
    RECEIVED,
    Answer,
    Chunk,
    Failure,
    Floats,
    Hello,
    Observation,
    Pace,
    Ping,
    Policy,
    Received,
    Replaced,
    ServerTimes,
    Skipped,
)
from policy_server.engines import guidance
from policy_server.serving.cleaning import KeyMap, preprocess
from policy_server.serving.fairness import DecodingTurns, Share
from policy_server.serving.filter import Filter
from policy_server.serving.history import History, stacked
from policy_server.serving.outbox import Outbox
from policy_server.serving.scheduler import Source, Timing, Work

log = logging.getLogger(__name__)
log.addFilter(Sparing())  # a stranger can cause its lines

# gRPC status codes, as numbers: in band they are data.
INVALID_ARGUMENT = 3
INTERNAL = 13

PACE_OVER = 8  # intervals between chunks
FURTHEST_DEADLINE_S = 10.0  # whatever a robot claims to have left
MUST_GO_AHEAD_S = 1.0  # one that must go passes an ordinary one that had as many turns, by so much


class Queue(Protocol):
    """Where a session says that it has something; `Scheduler` is one."""

    def submit(self, source: Source) -> None: ...


class Session:
    """Fed by its reader, emptied by the scheduler. `name` is for the log, `share` says whose turns it takes."""

    def __init__(
        self,
        hello: Hello,
        policy: Policy,
        keys: KeyMap,
        *,
        observations: int,
        name: str,
        share: Share,
        queue: Queue,
        decoding: DecodingTurns,
        outbox: Outbox,
        wire: str = "",
    ) -> None:
        """`observations`: how many of the last ones the policy looks at. `wire`: the protocol, empty for our own."""
        self.wire = wire
        self.policy = policy
        self.name = name
        self.share = share
        self._decoding = decoding.of(share)
        self._keys = keys
        self.acknowledges = RECEIVED in hello.understands
        self._rows = hello.actions_per_chunk or policy.chunk_size
        self._guidance = hello.guidance
        self._queue = queue
        self._outbox = outbox
        self._lock = threading.Lock()  # over all that follows
        self._filter = Filter(hello.similarity_tolerance, hello.image_tolerance)
        self._history = History(observations)
        self._session = -1  # the robot's session id
        self._waiting: tuple[Observation, Work] | None = None  # the slot
        self._greatest = -1  # timestep that was ever in the slot in this session
        self._must_go = False
        self._deadline_s = math.inf
        self._unanswered = 0
        self._ending = False
        self._closed = False
        self._answered_s: deque[float] = deque(maxlen=PACE_OVER + 1)  # when chunks were ready
        self._counts: Counter[str] = Counter()

    @property
    def urgency(self) -> float:
        return self._deadline_s - (MUST_GO_AHEAD_S if self._must_go else 0.0)

    @property
    def waiting_s(self) -> float:
        """The age of what is in the slot; 0 when that is empty."""
        waiting = self._waiting
        return 0.0 if waiting is None else time.monotonic() - waiting[1].since_s

    def differences(self, policy: Policy) -> list[str]:
        """What keeps this session from going on with `policy`."""
        return successor_differences(self.policy, policy, self._rows)

    def move(self, policy: Policy, observations: int) -> None:
        """The chunks that follow are of `policy`, which takes the same: the robot hears so before the first of them."""
        with self._lock:
            self.policy = policy
            self._history.resize(observations)
            self._filter.reset()
        self._outbox.put(Replaced(policy))

    def end(self, fault: Exception) -> None:
        """The stream ends with `fault`, after what was answered so far."""
        self._outbox.close(fault)

    def tell_pace(self, *, overloaded: bool) -> None:
        """Tell the robot how often it gets a chunk, or that the engine keeps up again."""
        times = list(self._answered_s)
        if not overloaded:
            self._outbox.put(Pace(0.0))
        elif len(times) > 1:
            self._outbox.put(Pace((times[-1] - times[0]) / (len(times) - 1)))

    def ping(self, ping: Ping) -> None:
        self._outbox.put(ping)

    def received(self, observation: int, size: int) -> None:
        """So much of its pictures is here: told to a robot that understands it."""
        if self.acknowledges:
            self._outbox.put(Received(observation, size))

    def feed(self, observation: Observation, receive_s: float) -> None:
        """Take an observation that arrived within `receive_s`: filter, decode, and put it into the slot."""
        arrived_s = time.monotonic()
        with self._lock:
            self._unanswered += 1
            displaced = self._turn_to(observation.session)
            self._must_go |= observation.must_go
            urgent = self._must_go
        self._supersede(displaced)
        with self._decoding:
            # May decode, as may what follows: not while the engine waits for us.
            skip = None if urgent else self._filter.verdict(observation)
            if skip is not None:
                self._answer(Skipped(observation.id, skip), skip)
                return
            admitted_s = time.monotonic()
            try:
                inputs = preprocess(observation, self._keys)
            except ProtocolError as error:
                self._fail(observation, INVALID_ARGUMENT, error)
                return
        queued_s = time.monotonic()
        spent = ServerTimes(receive=receive_s, admit=admitted_s - arrived_s, prepare=queued_s - admitted_s)
        due_s = arrived_s + min(observation.runs_dry_in_s, FURTHEST_DEADLINE_S)
        work = Work(
            inputs, queued_s, due_s, partial(self._done, observation, spent), partial(self._fail, observation, INTERNAL)
        )
        with self._lock:
            self._deadline_s = min(self._deadline_s, due_s)
            displaced = self._put(observation, work)
        self._queue.submit(self)
        self._supersede(displaced)

    def take(self) -> Work | None:
        """Empty the slot; None when it is empty, or its stream has ended."""
        with self._lock:
            if self._waiting is None or self._outbox.closed:
                return None
            observation, work = self._waiting
            self._waiting = None
            self._must_go, self._deadline_s = False, math.inf
            latest = self._history.latest()
            policy = self.policy
        inputs = stacked(latest, self._keys.features)
        if policy.guided:
            inputs = {**inputs, **guidance.of(observation, self._guidance, policy)}
        return replace(work, inputs=inputs)

    def finish(self) -> None:
        """The robot has nothing more to send: the stream ends once all is answered."""
        with self._lock:
            self._ending = True
            if self._unanswered == 0:
                self._outbox.close()

    def close(self) -> None:
        """The stream has ended: nothing of its observations is kept, whatever the reader still brings."""
        with self._lock:
            self._closed = True
            self._waiting = None
            self._filter.reset()
            self._history.clear()

    def tally(self) -> str:
        """What was answered so far, for the log: `120 chunks, 3 similar`."""
        with self._lock:
            return ", ".join(f"{count} {answer}" for answer, count in self._counts.items())

    def _turn_to(self, session: int) -> Observation | None:
        """Start anew if the robot did; what waited for the old session is returned."""
        if session == self._session:
            return None
        displaced = self._waiting
        self._session, self._greatest = session, -1
        self._waiting, self._must_go, self._deadline_s = None, False, math.inf
        self._filter.reset()
        self._history.clear()
        return displaced[0] if displaced else None

    def _put(self, observation: Observation, work: Work) -> Observation | None:
        """Into the slot if none of a greater timestep was there; the one that lost is returned."""
        self._must_go |= observation.must_go  # once more: the slot may have been emptied since
        if self._closed or observation.timestep < self._greatest:
            return observation
        displaced = self._waiting
        self._waiting, self._greatest = (observation, work), observation.timestep
        self._history.add(work.inputs)
        return displaced[0] if displaced else None

    def _supersede(self, observation: Observation | None) -> None:
        if observation is not None:
            self._answer(Skipped(observation.id, "superseded"), "superseded")

    def _done(self, observation: Observation, spent: ServerTimes, actions: Floats, timing: Timing) -> None:
        actions = actions[: self._rows]
        if not np.isfinite(actions).all():
            row, joint = np.argwhere(~np.isfinite(actions))[0]
            where = f"{self.policy.name}: row {row} of the chunk, {self.policy.joints[joint].name}"
            self._fail(observation, INTERNAL, ModelError(f"{where}: {actions[row, joint]} is not a finite number"))
            return
        self._answered_s.append(timing.ready_s)
        with self._lock:
            if observation.session == self._session and not self._closed:
                self._filter.succeeded(observation)
        times = ServerTimes(
            receive=spent.receive,
            admit=spent.admit,
            wait=timing.wait,
            prepare=spent.prepare + timing.prepare,
            infer=timing.infer,
            inject=timing.inject,
        )
        chunk = Chunk(
            observation=observation.id,
            session=observation.session,
            first_timestep=observation.timestep,
            actions=actions,
            digest=self.policy.digest,
            times=times,
            batch=timing.batch,
        )
        self._answer(chunk, "chunks", timing.ready_s)

    def _fail(self, observation: Observation, code: int, error: Exception) -> None:
        error_id = secrets.token_hex(4)
        reason = str(error).strip() or type(error).__name__
        log.error("%s: observation %d failed (id %s): %s", self.name, observation.id, error_id, reason)
        log.debug("id %s", error_id, exc_info=error)
        self._answer(Failure(observation.id, code, reason, error_id), "failures")

    def _answer(self, answer: Answer, count: str, since_s: float | None = None) -> None:
        self._outbox.put(answer, since_s)
        with self._lock:
            self._counts[count] += 1
            self._unanswered -= 1
            if self._ending and self._unanswered == 0:
                self._outbox.close()
