"""Asks for action chunks in time, and merges what comes back into the plan that is executed.

The conversation with the server has one place: an observation is in flight until its answer comes (chunk, skipped or
failure), until it counts as lost, or until a new stream opens. With nothing in flight the `Observer` decides.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from edge_runtime._realtime import ActionRing, Record
from edge_runtime.config import Mode, RtcConfig, StartConfig
from edge_runtime.errors import ConfigError, ProtocolError, StreamError
from edge_runtime.planning import aggregation
from edge_runtime.planning.observer import QUIET_S, Observer
from edge_runtime.planning.sensors import Sensors
from edge_runtime.planning.threshold import AutoThreshold, FixedThreshold, Threshold, part_of
from edge_runtime.timing import SERVER_STAGES, LatencyWindow, StageTimes
from edge_runtime.wire.messages import Answer, Chunk, Failure, Floats, Guidance, Observation, Policy, Skipped

log = logging.getLogger(__name__)

FAILURES_IN_A_ROW = 5
LOST_AFTER_S = 1.0
LATE_BY_S = 1.0  # beyond the length of a chunk, an action is not worth executing
PACED_FOR_S = 60.0  # after the server was last overloaded, this robot does not ask early
SEQUENTIAL_LEFT = 0.5  # of a chunk is not asked for: there is no round trip to cover, so `auto` has no say
_REMEMBERED = 16  # sent observations whose answer may still come


class Link(Protocol):
    """The way to the server; `PolicyStream` is one."""

    def send(self, observation: Observation) -> bool:
        """Hand over an observation; False when no stream is open."""

    def suspect(self) -> None:
        """An answer is lost: is the stream still alive?"""

    @property
    def is_uploading(self) -> bool:
        """The observation is still on its way there, and gets on."""


@dataclass(frozen=True)
class PlannerSettings:
    """When to ask, and how to merge: the settings of `StartConfig` with these names, and two more.

    `aggregate_fn_name` may also be what an `ActionRing` takes. `filtered`: the server may skip what is similar.
    `idle_gap_s` is a rest between a chunk and the next observation, for the profiler.
    """

    fps: float = StartConfig.fps
    mode: Mode = StartConfig.mode
    actions_per_chunk: int | None = StartConfig.actions_per_chunk
    chunk_size_threshold: float | Literal["auto"] = StartConfig.chunk_size_threshold
    starve_risk: float = StartConfig.starve_risk
    auto_floor: float = StartConfig.auto_floor
    aggregate_fn_name: Any = StartConfig.aggregate_fn_name
    rtc: RtcConfig = field(default_factory=RtcConfig)
    max_action_age_s: float | None = StartConfig.max_action_age_s
    filtered: bool = False
    idle_gap_s: float = 0.0

    @classmethod
    def of(cls, config: StartConfig, *, filtered: bool = False, idle_gap_s: float = 0.0) -> PlannerSettings:
        names = {field.name for field in dataclasses.fields(cls)} - {"filtered", "idle_gap_s"}
        told = {name: getattr(config, name) for name in names}
        return cls(**told, filtered=filtered, idle_gap_s=idle_gap_s)

    def asking(self, policy: Policy) -> Asking:
        """Rows of each chunk and the level at which to ask. ConfigError if no row is left to execute.

        Sequential executes all rows that it asks for, and asks with none left. Unless `actions_per_chunk` says how
        many, they are those that asynchronous would execute between two observations.
        """
        rows, left = self.actions_per_chunk or policy.chunk_size, self.chunk_size_threshold
        if self.mode == "async":
            return Asking(rows, "auto" if left == "auto" else part_of(left, rows))
        if self.actions_per_chunk is None:
            left = SEQUENTIAL_LEFT if left == "auto" else left
            rows = part_of(1 - left, rows)
            if rows == 0:
                raise ConfigError(f"chunk_size_threshold: {left:g} leaves mode=sequential nothing to execute")
        return Asking(rows, 0)

    def guidance(self, policy: Policy) -> Guidance | None:
        """How its chunks continue the plan; None = they do not. Raises ConfigError where `rtc` cannot be had."""
        rtc = self.rtc
        if rtc.enabled is False:
            return None
        if not policy.guided or self.mode != "async":
            if rtc.enabled is True:
                why = f"mode={self.mode} leaves no plan" if policy.guided else f"policy {policy.name} cannot be guided"
                raise ConfigError(f"rtc.enabled: true, but {why}")
            return None
        if rtc.execution_horizon > policy.chunk_size:
            raise ConfigError(
                f"rtc.execution_horizon: {rtc.execution_horizon} is more than the {policy.chunk_size} rows of a chunk"
            )
        return Guidance(rtc.prefix_attention_schedule, rtc.execution_horizon, rtc.max_guidance_weight)


@dataclass(frozen=True)
class Asking:
    """The rows to ask for of each chunk, and the level of the queue, in rows, at which to ask."""

    rows: int
    level: int | Literal["auto"]


@dataclass(frozen=True)
class _Sent:
    observation: Observation
    seen_ns: int  # when the state in it was read
    sent_ns: int


def make_ring(policy: Policy, settings: PlannerSettings) -> ActionRing:
    """An empty plan for chunks of `policy`. Raises ConfigError for what `aggregate_fn_name` cannot be."""
    joints = len(policy.joints)
    chunk = (policy.chunk_size, joints)
    aggregate = aggregation.for_policy(settings.aggregate_fn_name, policy.temporal_ensemble_coeff, chunk)
    max_age_s = settings.max_action_age_s or policy.chunk_size / settings.fps + LATE_BY_S
    return ActionRing(2 * policy.chunk_size, joints, aggregate, max_age_s=max_age_s)


class Planner:
    """One robot's half of the conversation with the server, on any clock.

    `ring` is the plan: one thread executes it. `observe` is for the thread that follows the execution, and the methods
    from `connected` to `paced` for the stream's. Raises ConfigError for settings that do not go with the policy.
    """

    def __init__(
        self,
        sensors: Sensors,
        settings: PlannerSettings,
        link: Link,
        *,
        stages: StageTimes | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        policy, asking = sensors.policy, settings.asking(sensors.policy)
        self._link = link
        self._sensors = sensors
        self._joints = len(policy.joints)
        self._digest = policy.digest  # of the chunks that are due; the server may replace the policy
        self._fps = settings.fps
        self._wants_guidance = settings.guidance(policy) is not None
        self._guided = self._wants_guidance and policy.guided
        self._idle_gap_ns = int(settings.idle_gap_s * 1e9)
        self._clock_ns = clock_ns
        self.rows = asking.rows
        self.ring = make_ring(policy, settings)
        self.latency = LatencyWindow.for_risk(settings.starve_risk, slack_s=1 / settings.fps)
        self.threshold: Threshold = (
            AutoThreshold(
                self.latency,
                settings.fps,
                asking.rows,
                settings.filtered,
                settings.auto_floor,
                lambda: self._clock_ns() < self._paced_until_ns,
            )
            if asking.level == "auto"
            else FixedThreshold(asking.level)
        )
        self.stages = stages or StageTimes()
        self.counts: Counter[str] = Counter()
        self._observer = Observer(
            sensors,
            self.threshold,
            self.latency,
            stages=self.stages,
            counts=self.counts,
            fps=settings.fps,
            clock_ns=clock_ns,
        )
        self._lock = threading.Lock()
        self._connected = False
        self._in_flight: _Sent | None = None
        self._waits_since_ns = 0
        self._sent: dict[int, _Sent] = {}
        self._lost: set[int] = set()  # those of `_sent` that are no longer waited for: how late they come is no latency
        self._next_id = 1
        self._session = random.SystemRandom().getrandbits(48)
        self._failures = 0
        self._merged: tuple[int, int] | None = None  # the ring's merge count and the time, until a tick executes it
        self._pace_s = 0.0  # between chunks, while the server is overloaded
        self._paced_until_ns = 0
        self.ring.open_session(self._session, clear=True, cursor=0)

    # -- the stream's side ------------------------------------------------------------------------------------------

    def connected(self, policy: Policy) -> None:
        """A stream is open: a new session, the plan goes on, whatever was in flight is forgotten."""
        with self._lock:
            self._open_session(clear=False)
            self._digest = policy.digest
            self._guided = self._wants_guidance and policy.guided
            self._connected = True
            self.counts["streams"] += 1

    def disconnected(self) -> None:
        with self._lock:
            self._connected = False
            self._in_flight = None
            self._pace_s = 0.0

    def answered(self, answer: Answer) -> None:
        """Act on the answer to one observation. ProtocolError if it cannot be one, StreamError after 5 failures."""
        with self._lock:
            sent = self._sent.pop(answer.observation, None)
            if sent is None:
                raise ProtocolError(f"the server answered observation {answer.observation}, which was not sent")
            now_ns = self._clock_ns()
            if isinstance(answer, Chunk):
                self._merge(answer, sent, now_ns)
            elif isinstance(answer, Skipped):
                self._observer.skipped((now_ns - sent.seen_ns) / 1e9, now_ns)
                self.counts[f"skipped_{answer.reason}"] += 1
            else:
                self._fail(answer, now_ns)
            if self._in_flight is not None and self._in_flight.observation.id == answer.observation:
                self._in_flight = None

    def pinged(self, seconds: float) -> None:
        """The network's own time, both ways."""
        self.stages.record("network", seconds)
        if not self.counts["skipped_similar"]:
            self._observer.skip_s = seconds

    def replaced(self, policy: Policy) -> None:
        """The chunks that follow come from another bundle; the plan goes on and takes them in."""
        log.info("the server replaced %s: now %s", policy.name, policy.digest.hex()[:12])
        with self._lock:
            self._digest = policy.digest
            self._guided = self._wants_guidance and policy.guided
            self.counts["replaced"] += 1

    def paced(self, interval_s: float) -> None:
        """The server is asked for more than it can carry, or (0) keeps up again; said once for each change."""
        if interval_s and not self._pace_s:
            log.warning("the server is overloaded: a chunk every %.2f s is what this robot gets", interval_s)
            self.counts["overloads"] += 1
        elif self._pace_s and not interval_s:
            log.info("the server keeps up again")
        self._pace_s = interval_s
        self._paced_until_ns = self._clock_ns() + int(PACED_FOR_S * 1e9)  # the server says it every few seconds

    # -- the loop's side --------------------------------------------------------------------------------------------

    def new_episode(self) -> None:
        """Empty ring, timestep 0, a new session; what was in flight is dropped when it comes."""
        with self._lock:
            self._open_session(clear=True, cursor=0)
            self._observer.ignore_before(self._clock_ns())

    def forget_plan(self) -> None:
        """The arm has failed: empty ring, a new session, the cursor goes on; the next observation must go."""
        with self._lock:
            self._open_session(clear=True)

    def observe(self, record: Record) -> None:
        """Look at one timestep's record and send an observation if it is time."""
        self._sensors.follow(record)
        with self._lock:
            self._note_execution(record)
            must_go = self._decide(record, self._clock_ns())
            session, number = self._session, self._next_id
            delay, plan = (0, None) if must_go is None else self._leftover(record)
        if must_go is None:
            return
        observation = self._observer.look(record, session, number, must_go)  # may wait for a slow URL: not in the lock
        if observation is None:
            return
        observation = replace(observation, delay=delay, plan=plan)
        with self._lock:
            if session == self._session and self._connected and self._link.send(observation):
                self._remember(_Sent(observation, record.time_ns, self._clock_ns()))

    @property
    def merges(self) -> int:
        """Chunks that went into the plan so far."""
        return self.ring.merges

    @property
    def is_connected(self) -> bool:
        return self._connected

    @property
    def lost_after_s(self) -> float:
        """An answer that is missing for so long counts as lost: later, nothing of its chunk could be executed."""
        return min(max(LOST_AFTER_S, 3 * self.latency.quantile()), self.rows / self._fps + LATE_BY_S)

    # -- inside -----------------------------------------------------------------------------------------------------

    def _open_session(self, *, clear: bool, cursor: int | None = None) -> None:
        self._session += 1
        self._in_flight = None
        self._observer.end_quiet()
        self._failures = 0
        self._merged = None
        self.ring.open_session(self._session, clear=clear, cursor=cursor)

    def _decide(self, record: Record, now_ns: int) -> bool | None:
        """None = send nothing now; otherwise whether the observation must go."""
        if not self._connected or record.paused or self._waiting(now_ns):
            return None
        return self._observer.decide(record, now_ns)

    def _leftover(self, record: Record) -> tuple[int, Floats | None]:
        """How many rows will have been executed when the chunk comes, and the plan that it is to continue.

        None = a chunk that is not guided: the plan ends before the chunk comes.
        """
        if not self._guided:
            return 0, None
        delay = math.ceil(self.latency.quantile() * self._fps - 1e-9)
        plan = self.ring.planned(record.timestep, self.rows)
        return (delay, plan) if len(plan) > delay else (0, None)

    def _waiting(self, now_ns: int) -> bool:
        """Is an answer still to come? One that is overdue is counted as lost and no longer waited for."""
        if self._in_flight is None:
            return False
        if self._link.is_uploading:
            self._waits_since_ns = now_ns  # for an answer: from the end of the upload
        if (now_ns - self._waits_since_ns) / 1e9 < self.lost_after_s:
            return True
        self.counts["lost"] += 1
        self._lost.add(self._in_flight.observation.id)
        self._in_flight = None
        self._link.suspect()
        return False

    def _remember(self, sent: _Sent) -> None:
        self._next_id += 1
        self._in_flight, self._waits_since_ns = sent, sent.sent_ns
        self._sent[sent.observation.id] = sent
        while len(self._sent) > _REMEMBERED:
            del self._sent[next(iter(self._sent))]
        self._lost &= self._sent.keys()
        self.counts["sent"] += 1
        self.counts["must_go"] += sent.observation.must_go
        self.counts["guided"] += sent.observation.plan is not None

    def _merge(self, chunk: Chunk, sent: _Sent, now_ns: int) -> None:
        observation = sent.observation
        if chunk.session != observation.session or chunk.first_timestep != observation.timestep:
            raise ProtocolError(
                f"chunk for timestep {chunk.first_timestep} of session {chunk.session} answers an observation of "
                f"timestep {observation.timestep} of session {observation.session}"
            )
        if chunk.digest != self._digest:
            raise ProtocolError(f"chunk comes from policy {chunk.digest.hex()[:12]}, not {self._digest.hex()[:12]}")
        rows, joints = chunk.actions.shape
        if joints != self._joints or not 0 < rows <= self.rows:
            raise ProtocolError(f"chunk is {rows}x{joints}, asked for at most {self.rows}x{self._joints}")
        # A guided chunk is held to the plan before its delay: those rows stay as they are.
        keep = min(observation.delay, rows - 1)
        taken = self.ring.merge(chunk.first_timestep + keep, chunk.actions[keep:], chunk.session, sent.seen_ns)
        merged_ns = self._clock_ns()
        self._failures = 0
        if self._idle_gap_ns:
            self._observer.rest_until(merged_ns + self._idle_gap_ns)
        if chunk.session != self._session:
            self.counts["chunks_foreign"] += 1
            return
        self.counts["chunks_merged" if taken else "chunks_stale"] += 1
        round_trip_s = (merged_ns - sent.seen_ns) / 1e9
        if observation.id not in self._lost:
            self.latency.record(round_trip_s)
        self.stages.record("round_trip", round_trip_s)
        self.stages.record("merge", (merged_ns - now_ns) / 1e9)
        for stage in SERVER_STAGES:
            self.stages.record(stage, getattr(chunk.times, stage))
        if taken:
            self._merged = (self.ring.merges, merged_ns)
        if round_trip_s * self._fps >= rows and not self.counts["slower_than_chunk"]:
            log.warning(
                "a round trip of %.2f s is as long as the chunk itself (%d actions at %g Hz): the arm will stop and go",
                round_trip_s,
                rows,
                self._fps,
            )
        self.counts["slower_than_chunk"] += round_trip_s * self._fps >= rows

    def _fail(self, failure: Failure, now_ns: int) -> None:
        self.counts["failures"] += 1
        self._failures += 1
        self._observer.rest_until(now_ns + int(QUIET_S * 1e9))
        log.warning("inference failed: %s (id %s)", failure.message, failure.error_id)
        if self._failures >= FAILURES_IN_A_ROW:
            raise StreamError(
                f"{self._failures} inferences in a row failed; the last: {failure.message} (id {failure.error_id})"
            )

    def _note_execution(self, record: Record) -> None:
        """Close the stage `actuate`: the first tick that executes from a merge."""
        if self._merged is not None and record.merges >= self._merged[0]:
            self.stages.record("actuate", max(record.time_ns - self._merged[1], 0) / 1e9)
            self._merged = None
