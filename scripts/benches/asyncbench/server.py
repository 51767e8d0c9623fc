"""A policy server without a wire: filter, inference, and an answer that is due after the link's round trip."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from edge_runtime.wire.messages import Answer, Chunk, Observation, Skipped
from policy_server.serving.filter import Filter
from scripts.benches.asyncbench.link import Times
from scripts.benches.asyncbench.method import Method
from scripts.benches.asyncbench.policy import LoadedPolicy

SIMILAR_DEGREES = 1.0  # the runtime's default for a robot in degrees
SKIPPED_NS = 20_000_000  # a skipped answer waits for no inference


@dataclass
class Clock:
    """A trial's own time: `tick` ticks have passed, in `starved` of which the arm had no row to execute."""

    now_ns: int = 0
    tick: int = 0
    starved: int = 0

    def __call__(self) -> int:
        return self.now_ns


@dataclass(frozen=True)
class Due:
    """An answer and when it arrives; what it answers, and the clock's ticks when that was seen."""

    at_ns: int
    answer: Answer
    observation: Observation
    seen_ns: int
    tick: int
    starved: int


class Server:
    """Answers at the times of `round_trips_s`, by the tick of the question; inf = never."""

    def __init__(self, policy: LoadedPolicy, method: Method, rows: int, round_trips_s: Times, clock: Clock) -> None:
        self._policy = policy
        self._method = method
        self._rows = rows
        self._round_trips_s = round_trips_s
        self._clock = clock
        self._filter = Filter(SIMILAR_DEGREES)
        self._on_the_way: list[Due] = []
        self.inferences = 0
        self.skipped = 0

    def send(self, observation: Observation) -> bool:
        reason = None if observation.must_go else self._filter.verdict(observation)
        if reason is None:
            self._infer(observation)
        else:
            self.skipped += 1
            self._answer(Skipped(observation.id, reason), observation, SKIPPED_NS)
        return True

    is_uploading = False

    def suspect(self) -> None:
        """A link that loses answers is not dead."""

    def due(self, until_ns: int) -> Iterator[Due]:
        """What arrives by then, the clock at each one's arrival and the rows as the method takes them."""
        self._on_the_way.sort(key=lambda due: due.at_ns)
        while self._on_the_way and self._on_the_way[0].at_ns <= until_ns:
            due = self._on_the_way.pop(0)
            self._clock.now_ns = due.at_ns
            yield replace(due, answer=self._received(due))

    def _infer(self, observation: Observation) -> None:
        actions = self._policy.infer(self._method.see(observation))[: self._rows]
        self.inferences += 1
        self._filter.succeeded(observation)
        chunk = Chunk(observation.id, observation.session, observation.timestep, actions, self._policy.digest)
        round_trip_s = self._round_trips_s[self._clock.tick]
        if np.isfinite(round_trip_s):
            self._answer(chunk, observation, round(round_trip_s * 1e9))

    def _answer(self, answer: Answer, observation: Observation, after_ns: int) -> None:
        clock = self._clock
        due = Due(clock.now_ns + after_ns, answer, observation, clock.now_ns, clock.tick, clock.starved)
        self._on_the_way.append(due)

    def _received(self, due: Due) -> Answer:
        if not isinstance(due.answer, Chunk):
            return due.answer
        passed = self._clock.tick - due.tick
        executed = passed - (self._clock.starved - due.starved)
        return replace(due.answer, actions=self._method.receive(due.answer.actions, due.observation, passed, executed))
