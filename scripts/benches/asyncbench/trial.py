"""One closed loop: the product's ring, loop, observer and filter around a policy called in process, on a made-up clock.

A tick is: deliver the answers that are due, `ActuatorLoop.tick`, let the observer look, let the scene advance. Nothing
in here sleeps or asks what time it is.
"""

from __future__ import annotations

import numpy as np

from edge_runtime._realtime import ActionRing, ActuatorLoop, PythonPort
from edge_runtime.planning.observer import Observer
from edge_runtime.planning.sensors import Sensors
from edge_runtime.planning.task import Task
from edge_runtime.timing import STAGES, LatencyWindow, StageTimes
from edge_runtime.virtual_arm.episode import MAX_TICKS
from edge_runtime.wire.messages import Chunk
from scripts.benches.asyncbench.cell import Cell
from scripts.benches.asyncbench.link import FPS, round_trips
from scripts.benches.asyncbench.method import Method
from scripts.benches.asyncbench.outcome import Outcome
from scripts.benches.asyncbench.policy import LoadedPolicy
from scripts.benches.asyncbench.server import Clock, Server
from scripts.benches.asyncbench.witness import Witness
from scripts.benches.asyncbench.world import World

STARVE_RISK = 0.01  # the runtime's default, as are the next
MAX_FRAME_AGE_S = 0.5
LATE_BY_S = 1.0  # beyond the length of a chunk, an action is not executed
_BEFORE = 1_000_000  # the seeds of the weather before an episode


class Trial:
    """`method` in `cell` on the episode of `seed`."""

    def __init__(self, policy: LoadedPolicy, method: Method, cell: Cell, seed: int) -> None:
        joints, rows = len(policy.description.joints), method.rows(cell.actions, cell.threshold)
        self._seed, self._policy = seed, policy.description
        self._world = World(policy.scene, cell.world, seed, fixed_goal=policy.sees)
        self._clock = Clock()
        self._server = Server(policy, method, rows, round_trips(cell.link, seed, MAX_TICKS), self._clock)
        self._ring, ring = (
            ActionRing(2 * policy.description.chunk_size, joints, method.aggregate(), max_age_s=rows / FPS + LATE_BY_S)
            for _ in range(2)
        )
        self._witness = Witness(ring)
        self._loop = ActuatorLoop(
            self._ring,
            PythonPort(self._world, joints),
            fps=FPS,
            lower=policy.lower,
            upper=policy.upper,
            max_speed=method.max_speed,
            history=1,
        )
        latency = _measured(cell.link, seed)
        threshold = method.ask_at(cell.actions, cell.threshold, latency)
        self._observer = Observer(
            Sensors(policy.description, policy.views(self._clock), policy.vectors, False, MAX_FRAME_AGE_S, Task("")),
            self._ring,
            self._server.send,
            on_lost=lambda: None,
            stages=StageTimes((*STAGES, "round_trip")),
            fps=FPS,
            threshold=threshold,
            latency=latency,
            rows=rows,
            clock_ns=self._clock,
        )
        self._starved_before: int | None = None  # the first chunk
        self._threshold = threshold
        self.queue: list[tuple[int, int]] = []  # by tick: the level, and the level at which the next chunk is asked for

    def run(self) -> Outcome:
        """The same numbers every time."""
        self._loop.prime(self._world.read())
        self._observer.connected(self._policy)
        while not self._world.episode.done:
            self._tick()
        clock, episode, ages = self._clock, self._world.episode, self._loop.action_age().summary()
        return Outcome(
            seed=self._seed,
            success=episode.success,
            ticks=episode.ticks,
            starved=clock.starved,
            starved_after_first_chunk=clock.starved - (self._starved_before or 0),
            inferences=self._server.inferences,
            skipped=self._server.skipped,
            lost=self._observer.counts["lost"],
            aged=ages.n,
            age_s=ages.mean,
            plan=self._witness.seams,
        )

    def _tick(self) -> None:
        now_ns = round(self._clock.tick * 1e9 / FPS)
        self._deliver(now_ns)
        self._clock.now_ns = now_ns
        self._loop.tick(now_ns)
        self._witness.tick(now_ns)
        record = self._loop.record
        self.queue.append((record.level, self._threshold.rows))
        self._observer.observe(record)
        self._world.advance()
        self._clock.tick += 1
        self._clock.starved += record.level == 0

    def _deliver(self, now_ns: int) -> None:
        for due in self._server.due(now_ns):
            merges = self._ring.merges
            self._observer.answered(due.answer)
            if isinstance(due.answer, Chunk) and self._ring.merges > merges:
                self._witness.merge(due.answer, due.seen_ns)
                if self._starved_before is None:
                    self._starved_before = self._clock.starved


def _measured(link: str, seed: int) -> LatencyWindow:
    """What the observer knows of the link at the start: twenty answers, as in the later episodes of a run."""
    window = LatencyWindow.for_risk(STARVE_RISK, slack_s=1 / FPS)
    before = round_trips(link, _BEFORE + seed, MAX_TICKS)
    for round_trip_s in before[np.isfinite(before)][:: MAX_TICKS // 25][:20]:
        window.record(float(round_trip_s))
    return window
