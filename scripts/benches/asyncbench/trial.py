"""One closed loop: the product's planner, loop and filter around a policy called in process, on a made-up clock.

A tick is: deliver the answers that are due, `ActuatorLoop.tick`, let the observer look, let the scene advance. Nothing
in here sleeps or asks what time it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from edge_runtime._realtime import ActuatorLoop, PythonPort
from edge_runtime.config import StartConfig
from edge_runtime.planning.planner import Planner, make_ring
from edge_runtime.planning.sensors import Sensors
from edge_runtime.planning.task import Task
from edge_runtime.timing import LatencyWindow
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

_BEFORE = 1_000_000  # the seeds of the weather before an episode


class Trial:
    """`method` in `cell` on the episode of `seed`."""

    def __init__(self, policy: LoadedPolicy, method: Method, cell: Cell, seed: int) -> None:
        settings = method.settings(cell.actions, cell.threshold)
        self._seed, self._policy = seed, policy.description
        self._world = World(policy.scene, cell.world, seed, fixed_goal=policy.sees)
        self._clock = Clock()
        rows = settings.asking(policy.description).rows
        self._server = Server(policy, method, rows, round_trips(cell.link, seed, MAX_TICKS), self._clock)
        self._planner = Planner(
            Sensors(
                policy.description,
                policy.views(self._clock),
                policy.vectors,
                resize=False,
                max_frame_age_s=StartConfig.max_frame_age_s,
                task=Task(""),
            ),
            settings,
            self._server,
            clock_ns=self._clock,
        )
        _measure(cell.link, seed, self._planner.latency)
        self._witness = Witness(make_ring(policy.description, settings))
        self._loop = ActuatorLoop(
            self._planner.ring,
            PythonPort(self._world, self._planner.ring.joints),
            fps=FPS,
            lower=policy.lower,
            upper=policy.upper,
            max_speed=method.max_speed,
            max_acceleration=[method.max_acceleration or math.inf] * self._planner.ring.joints,
            history=1,
        )
        self._starved_before: int | None = None  # the first chunk
        self.queue: list[tuple[int, int]] = []  # by tick: the level, and the level at which the next chunk is asked for

    def run(self, after_tick: Callable[[], None] = lambda: None) -> Outcome:
        """The same numbers every time; `after_tick` may look at the scene."""
        self._loop.prime(self._world.read())
        self._planner.connected(self._policy)
        while not self._world.episode.done:
            self._tick()
            after_tick()
        clock, episode, ages = self._clock, self._world.episode, self._loop.action_age().summary()
        return Outcome(
            seed=self._seed,
            success=episode.success,
            ticks=episode.ticks,
            starved=clock.starved,
            starved_after_first_chunk=clock.starved - (self._starved_before or 0),
            inferences=self._server.inferences,
            skipped=self._server.skipped,
            lost=self._planner.counts["lost"],
            aged=ages.n,
            age_s=ages.mean,
            slowed=self._loop.counters()["clamped_acceleration"],
            plan=self._witness.seams,
        )

    def _tick(self) -> None:
        now_ns = round(self._clock.tick * 1e9 / FPS)
        self._deliver(now_ns)
        self._clock.now_ns = now_ns
        self._loop.tick(now_ns)
        self._witness.tick(now_ns)
        record = self._loop.record
        self.queue.append((record.level, self._planner.threshold.rows))
        self._planner.observe(record)
        self._world.advance()
        self._clock.tick += 1
        self._clock.starved += record.level == 0

    def _deliver(self, now_ns: int) -> None:
        for due in self._server.due(now_ns):
            merges = self._planner.merges
            self._planner.answered(due.answer)
            if isinstance(due.answer, Chunk) and self._planner.merges > merges:
                self._witness.merge(due.answer, due.seen_ns)
                if self._starved_before is None:
                    self._starved_before = self._clock.starved


def _measure(link: str, seed: int, window: LatencyWindow) -> None:
    """What the planner knows of the link at the start: twenty answers, as in the later episodes of a run."""
    before = round_trips(link, _BEFORE + seed, MAX_TICKS)
    for round_trip_s in before[np.isfinite(before)][:: MAX_TICKS // 25][:20]:
        window.record(float(round_trip_s))
