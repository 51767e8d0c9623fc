"""Decides when to look and whether the observation must go, and turns state and frames into an observation.

At each timestep's record, with no answer to wait for:

1. send when the ring holds no more than `threshold.rows`;
2. it must go when the ring is empty or will be before an ordinary answer can come: a filtered one costs S, the next
   one Q(L) (while few are known: their bound), so level <= ceil((Q(L) + S) * fps) + 1;
3. after a skipped answer an ordinary one waits 0.2 s; one that must go does not.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, defaultdict
from collections.abc import Callable

from edge_runtime._realtime import Record
from edge_runtime.planning.sensors import CannotSee, Sensors
from edge_runtime.planning.threshold import Threshold
from edge_runtime.program.spell import Spell
from edge_runtime.timing import LatencyWindow, StageTimes
from edge_runtime.wire.messages import Observation

log = logging.getLogger(__name__)

QUIET_S = 0.2  # between a skipped or failed observation and the next


class Observer:
    """The eyes of a `Planner`, which keeps its threads apart: only `look` may run outside the planner's lock.

    `skip_s` is S, the time in seconds that a skipped answer takes. Observations that cannot be made are `counts`.
    """

    def __init__(
        self,
        sensors: Sensors,
        threshold: Threshold,
        latency: LatencyWindow,
        *,
        stages: StageTimes,
        counts: Counter[str],
        fps: float,
        clock_ns: Callable[[], int],
    ) -> None:
        self._sensors = sensors
        self._threshold = threshold
        self._latency = latency
        self._stages = stages
        self._counts = counts
        self._fps = fps
        self._clock_ns = clock_ns
        self._not_before_ns = 0
        self._began_ns = 0  # the episode: a record from before it says nothing of it
        self._quiet_until_ns = 0
        self._blind: defaultdict[str, Spell] = defaultdict(Spell)  # by reason
        self.skip_s = 0.0

    def decide(self, record: Record, now_ns: int) -> bool | None:
        """None = do not look now; otherwise whether the observation must go."""
        if record.time_ns < self._began_ns or now_ns < self._not_before_ns:
            return None
        if record.level > self._threshold.rows:
            return None
        must_go = record.level <= math.ceil((self._latency.bound() + self.skip_s) * self._fps) + 1
        return must_go if must_go or now_ns >= self._quiet_until_ns else None

    def look(self, record: Record, session: int, number: int, must_go: bool) -> Observation | None:
        """The observation of `record` with what the sensors have now; None, told once and counted, if they cannot."""
        try:
            state = self._sensors.state(record)
            frames = self._sensors.frames(self._clock_ns())
            extra_state = self._sensors.extra_state()
        except CannotSee as blind:
            self._counts[f"unsent_{blind.reason}"] += 1
            if self._blind[blind.reason].fails(self._clock_ns() / 1e9):
                log.warning("observations pause: %s", blind)
            return None
        now_s = self._clock_ns() / 1e9
        over = [spell.succeeds(now_s) for spell in self._blind.values()]
        if any(over) and not any(spell.lasts for spell in self._blind.values()):
            log.info("observations go on")
        self._stages.record("capture", (self._clock_ns() - record.time_ns) / 1e9)
        return Observation(
            id=number,
            session=session,
            timestep=record.timestep,
            must_go=must_go,
            state=state,
            extra_state=extra_state,
            frames=frames,
            task=self._sensors.task.text(),
            runs_dry_in_s=record.level / self._fps,
        )

    def skipped(self, took_s: float, now_ns: int) -> None:
        """The last one was skipped as similar: the next ordinary one waits."""
        self.skip_s = took_s
        self._quiet_until_ns = now_ns + int(QUIET_S * 1e9)

    def end_quiet(self) -> None:
        """A new session: what was skipped before says nothing."""
        self._quiet_until_ns = 0

    def rest_until(self, time_ns: int) -> None:
        """Nothing goes before `time_ns`, not even what must."""
        self._not_before_ns = time_ns

    def ignore_before(self, time_ns: int) -> None:
        """An episode begins: records from before it say nothing of it."""
        self._began_ns = time_ns
