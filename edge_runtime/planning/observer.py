"""Decides when to look and whether the observation must go, and turns state and frames into an observation.

The conversation with the server has one place: an observation is in flight until its answer comes (chunk, skipped or
failure), until it counts as lost, or until a new stream opens. At each timestep's record, with nothing in flight:

1. send when the ring holds no more than `threshold.rows`;
2. it must go when the ring is empty or will be before an ordinary answer can come: a filtered one costs S, the next
   one Q(L) (while few are known: their bound), so level <= ceil((Q(L) + S) * fps) + 1;
3. after a skipped answer an ordinary one waits 0.2 s; one that must go does not.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from edge_runtime._realtime import ActionRing, Record
from edge_runtime.errors import ProtocolError, StreamError
from edge_runtime.planning.sensors import CannotSee, Sensors
from edge_runtime.planning.threshold import Threshold
from edge_runtime.timing import SERVER_STAGES, LatencyWindow, StageTimes
from edge_runtime.wire.messages import Answer, Chunk, Failure, Observation, Policy, Skipped

log = logging.getLogger(__name__)

QUIET_S = 0.2  # between a skipped or failed observation and the next
FAILURES_IN_A_ROW = 5
LOST_AFTER_S = 1.0
_REMEMBERED = 16  # sent observations whose answer may still come


@dataclass(frozen=True)
class _Sent:
    observation: Observation
    seen_ns: int  # when the state in it was read
    sent_ns: int


class Observer:
    """One robot's half of the conversation. `send` hands an observation to the stream; False = no stream.

    `idle_gap_s` is a rest that the profiler asks for, between a chunk and the next observation.
    """

    def __init__(
        self,
        sensors: Sensors,
        ring: ActionRing,
        send: Callable[[Observation], bool],
        *,
        on_lost: Callable[[], None],
        stages: StageTimes,
        fps: float,
        threshold: Threshold,
        latency: LatencyWindow,
        rows: int,
        idle_gap_s: float = 0.0,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._sensors = sensors
        self._digest = sensors.policy.digest  # of the chunks that are due; the server may replace the policy
        self._ring = ring
        self._send = send
        self._on_lost = on_lost
        self._fps = fps
        self.threshold = threshold
        self._rows = rows
        self._idle_gap_ns = int(idle_gap_s * 1e9)
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._connected = False
        self._in_flight: _Sent | None = None
        self._sent: dict[int, _Sent] = {}
        self._next_id = 1
        self._session = random.SystemRandom().getrandbits(48)
        self._not_before_ns = 0
        self._began_ns = 0  # the episode: a record from before it says nothing of it
        self._quiet_until_ns = 0
        self._failures = 0
        self._merged: tuple[int, int] | None = None  # the ring's merge count and the time, until a tick executes it
        self._blind = ""
        self._pace_s = 0.0  # between chunks, while the server is overloaded
        self.latency = latency
        self.skip_s = 0.0
        self.stages = stages
        self.counts: Counter[str] = Counter()
        ring.open_session(self._session, clear=True, cursor=0)

    # -- the stream's side ------------------------------------------------------------------------------------------

    def connected(self, policy: Policy) -> None:
        """A stream is open: a new session, the plan goes on, whatever was in flight is forgotten."""
        with self._lock:
            self._open_session(clear=False)
            self._digest = policy.digest
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
                raise ProtocolError(f"the server answered observation {answer.observation}, which nobody asked about")
            now_ns = self._clock_ns()
            round_trip_s = (now_ns - sent.seen_ns) / 1e9
            if isinstance(answer, Chunk):
                self._merge(answer, sent, now_ns)
            elif isinstance(answer, Skipped):
                self.skip_s = round_trip_s
                self._quiet_until_ns = now_ns + int(QUIET_S * 1e9)
                self.counts[f"skipped_{answer.reason}"] += 1
            else:
                self._fail(answer, now_ns)
            if self._in_flight is not None and self._in_flight.observation.id == answer.observation:
                self._in_flight = None

    def pinged(self, seconds: float) -> None:
        """The network's own time, both ways."""
        self.stages.record("network", seconds)
        if not self.counts["skipped_similar"]:
            self.skip_s = seconds

    def replaced(self, policy: Policy) -> None:
        """The chunks that follow come from another bundle; the plan goes on and takes them in."""
        log.info("the server replaced %s: now %s", policy.name, policy.digest.hex()[:12])
        with self._lock:
            self._digest = policy.digest
            self.counts["replaced"] += 1

    def paced(self, interval_s: float) -> None:
        """The server is asked for more than it can carry, or (0) keeps up again; said once for each change."""
        if interval_s and not self._pace_s:
            log.warning("the server is overloaded: a chunk every %.2f s is what this robot gets", interval_s)
            self.counts["overloads"] += 1
        elif self._pace_s and not interval_s:
            log.info("the server keeps up again")
        self._pace_s = interval_s

    # -- the loop's side --------------------------------------------------------------------------------------------

    def new_episode(self) -> None:
        """Empty ring, timestep 0, a new session; what was in flight is dropped when it comes."""
        with self._lock:
            self._open_session(clear=True, cursor=0)
            self._began_ns = self._clock_ns()

    def forget_plan(self) -> None:
        """The arm has failed: empty ring, a new session, the cursor goes on; the next observation must go."""
        with self._lock:
            self._open_session(clear=True)

    def observe(self, record: Record) -> None:
        """Look at one timestep's record and send an observation if it is time."""
        with self._lock:
            self._note_execution(record)
            must_go = self._decide(record, self._clock_ns())
            session, number = self._session, self._next_id
        if must_go is None:
            return
        observation = self._capture(record, session, number, must_go)  # may wait for a slow URL: not under the lock
        if observation is None:
            return
        with self._lock:
            if session == self._session and self._connected and self._send(observation):
                self._remember(_Sent(observation, record.time_ns, self._clock_ns()))

    @property
    def merges(self) -> int:
        """Chunks that went into the plan so far."""
        return self._ring.merges

    @property
    def is_connected(self) -> bool:
        return self._connected

    @property
    def lost_after_s(self) -> float:
        """An answer that is missing for so long counts as lost."""
        return max(LOST_AFTER_S, 3 * self.latency.quantile())

    # -- inside -----------------------------------------------------------------------------------------------------

    def _open_session(self, *, clear: bool, cursor: int | None = None) -> None:
        self._session += 1
        self._in_flight = None
        self._quiet_until_ns = 0
        self._failures = 0
        self._merged = None
        self._ring.open_session(self._session, clear=clear, cursor=cursor)

    def _decide(self, record: Record, now_ns: int) -> bool | None:
        """None = send nothing now; otherwise whether the observation must go."""
        if not self._connected or record.paused or record.time_ns < self._began_ns or self._waiting(now_ns):
            return None
        if record.level > self.threshold.rows or now_ns < self._not_before_ns:
            return None
        must_go = record.level <= math.ceil((self.latency.bound() + self.skip_s) * self._fps) + 1
        return must_go if must_go or now_ns >= self._quiet_until_ns else None

    def _waiting(self, now_ns: int) -> bool:
        """Is an answer still to come? One that is overdue is counted as lost and no longer waited for."""
        if self._in_flight is None:
            return False
        if (now_ns - self._in_flight.sent_ns) / 1e9 < self.lost_after_s:
            return True
        self.counts["lost"] += 1
        self._in_flight = None
        self._on_lost()
        return False

    def _remember(self, sent: _Sent) -> None:
        self._next_id += 1
        self._in_flight = sent
        self._sent[sent.observation.id] = sent
        while len(self._sent) > _REMEMBERED:
            del self._sent[next(iter(self._sent))]
        self.counts["sent"] += 1
        self.counts["must_go"] += sent.observation.must_go

    def _capture(self, record: Record, session: int, number: int, must_go: bool) -> Observation | None:
        try:
            frames = self._sensors.frames(self._clock_ns())
            extra_state = self._sensors.extra_state()
        except CannotSee as blind:
            self.counts[f"unsent_{blind.reason}"] += 1
            if blind.reason != self._blind:
                log.warning("observations pause: %s", blind)
                self._blind = blind.reason
            return None
        if self._blind:
            log.info("observations go on")
            self._blind = ""
        self.stages.record("capture", (self._clock_ns() - record.time_ns) / 1e9)
        return Observation(
            id=number,
            session=session,
            timestep=record.timestep,
            must_go=must_go,
            state=np.asarray(record.positions, np.float32),
            extra_state=extra_state,
            frames=frames,
            task=self._sensors.task.text(),
            runs_dry_in_s=record.level / self._fps,
        )

    def _merge(self, chunk: Chunk, sent: _Sent, now_ns: int) -> None:
        observation, policy = sent.observation, self._sensors.policy
        if chunk.session != observation.session or chunk.first_timestep != observation.timestep:
            raise ProtocolError(
                f"chunk for timestep {chunk.first_timestep} of session {chunk.session} answers an observation of "
                f"timestep {observation.timestep} of session {observation.session}"
            )
        if chunk.digest != self._digest:
            raise ProtocolError(f"chunk comes from policy {chunk.digest.hex()[:12]}, not {self._digest.hex()[:12]}")
        rows, joints = chunk.actions.shape
        if joints != len(policy.joints) or not 0 < rows <= self._rows:
            raise ProtocolError(f"chunk is {rows}x{joints}, asked for at most {self._rows}x{len(policy.joints)}")
        taken = self._ring.merge(chunk.first_timestep, chunk.actions, chunk.session, sent.seen_ns)
        merged_ns = self._clock_ns()
        self._failures = 0
        if self._idle_gap_ns:
            self._not_before_ns = merged_ns + self._idle_gap_ns
        if chunk.session != self._session:
            self.counts["chunks_foreign"] += 1
            return
        self.counts["chunks_merged" if taken else "chunks_stale"] += 1
        round_trip_s = (merged_ns - sent.seen_ns) / 1e9
        self.latency.record(round_trip_s)
        self.stages.record("round_trip", round_trip_s)
        self.stages.record("merge", (merged_ns - now_ns) / 1e9)
        for stage in SERVER_STAGES:
            self.stages.record(stage, getattr(chunk.times, stage))
        if taken:
            self._merged = (self._ring.merges, merged_ns)
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
        self._not_before_ns = now_ns + int(QUIET_S * 1e9)
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
