"""One closed loop: the product's ring, loop, observer and filter around a policy called in process, on a made-up clock.

A tick is: deliver the answers that are due, `ActuatorLoop.tick`, let the observer look, let the scene advance. Nothing
in here sleeps or asks what time it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from asyncbench.cell import Cell
from asyncbench.link import FPS, Times, round_trips
from asyncbench.method import Method
from asyncbench.policy import LoadedPolicy
from asyncbench.world import World
from edge_runtime._realtime import PICKED, ActionRing, ActuatorLoop, PythonPort, Record
from edge_runtime.observer import Look, Observer
from edge_runtime.task import Task
from edge_runtime.timing import STAGES, LatencyWindow, StageTimes
from edge_runtime.virtual_arm.episode import MAX_TICKS
from edge_runtime.wire.messages import Answer, Chunk, Observation, Skipped
from policy_server.filter import Filter

SIMILAR_DEGREES, STARVE_RISK = 1.0, 0.01  # the runtime's defaults, for a robot in degrees
WEATHER_BEFORE = 1_000_000  # the seeds of what was before an episode
SKIPPED_NS = 20_000_000  # a skipped answer waits for no inference


@dataclass
class Outcome:
    """What came of one seed. Steps are in joint units, between the planned targets of neighbouring ticks."""

    seed: int
    success: bool = False
    ticks: int = 0
    starved: int = 0
    starved_after_first_chunk: int = 0
    inferences: int = 0
    skipped: int = 0
    lost: int = 0
    seams: int = 0  # chunks whose first row was executed after a row of another plan
    seam_sum: float = 0.0
    seam_max: float = 0.0
    step_max: float = 0.0  # anywhere
    aged: int = 0
    age_sum_s: float = 0.0  # of the newest observation behind each executed row


@dataclass
class Clock:
    now_ns: int = 0

    def __call__(self) -> int:
        return self.now_ns


@dataclass
class Server:
    """A policy server without a wire: filter, inference, and an answer that is due after the link's round trip."""

    policy: LoadedPolicy
    method: Method
    rows: int
    round_trips_s: Times
    clock: Clock
    outcome: Outcome
    tick: int = 0
    starved: int = 0
    _filter: Filter = field(default_factory=lambda: Filter(SIMILAR_DEGREES))
    _answers: list[tuple[int, Answer, int]] = field(default_factory=list)  # due at, answer, ticks starved before

    def send(self, observation: Observation) -> bool:
        reason = None if observation.must_go else self._filter.verdict(observation)
        if reason is not None:
            self.outcome.skipped += 1
            self._answers.append((self.clock.now_ns + SKIPPED_NS, Skipped(observation.id, reason), 0))
            return True
        actions = self.policy.infer(self.method.see(observation))[: self.rows]
        self.outcome.inferences += 1
        self._filter.succeeded(observation)
        round_trip_s = self.round_trips_s[self.tick]
        if np.isfinite(round_trip_s):
            chunk = Chunk(observation.id, observation.session, observation.timestep, actions, self.policy.digest)
            self._answers.append((self.clock.now_ns + round(round_trip_s * 1e9), chunk, self.starved))
        return True

    def due(self, until_ns: int) -> Iterator[Answer]:
        """The answers that arrive by then, the clock at each one's arrival."""
        self._answers.sort(key=lambda entry: entry[0])
        while self._answers and self._answers[0][0] <= until_ns:
            self.clock.now_ns, answer, starved = self._answers.pop(0)
            if isinstance(answer, Chunk):
                actions = self.method.receive(answer.actions, self.starved - starved)
                yield Chunk(answer.observation, answer.session, answer.first_timestep, actions, answer.digest)
            else:
                yield answer


class Witness:
    """Executes the same plan beside the loop: what was planned before the guard changed it, and how old it was."""

    def __init__(self, capacity: int, joints: int, method: Method, outcome: Outcome) -> None:
        self._ring = ActionRing(capacity, joints, method.aggregate())
        self._outcome = outcome
        self._target = np.zeros(joints, np.float32)
        self._merges = 0
        self._seen_tick: dict[int, int] = {}  # by timestep

    def merge(self, chunk: Chunk, seen_tick: int) -> None:
        for timestep in range(self._ring.cursor, chunk.first_timestep + len(chunk.actions)):
            self._seen_tick[timestep] = seen_tick
        self._ring.merge(chunk.first_timestep, chunk.actions, 0)

    def pick(self, record: Record, tick: int) -> None:
        before, self._target = self._target, self._target.copy()
        if self._ring.pick(self._target) != PICKED:
            return
        outcome = self._outcome
        if outcome.aged:
            step = float(np.abs(self._target - before).max())
            outcome.step_max = max(outcome.step_max, step)
            if record.merges != self._merges:
                outcome.seams += 1
                outcome.seam_sum += step
                outcome.seam_max = max(outcome.seam_max, step)
        self._merges = record.merges
        outcome.aged += 1
        outcome.age_sum_s += (tick - self._seen_tick[record.timestep]) / FPS


def run(policy: LoadedPolicy, method: Method, cell: Cell, seed: int) -> Outcome:
    """The outcome of `method` in `cell` on the episode of `seed`: the same numbers every time."""
    outcome, clock = Outcome(seed), Clock()
    world = World(policy.scene, cell.world, seed, fixed_goal=policy.sees)
    joints, capacity = len(policy.description.joints), 2 * policy.description.chunk_size
    rows = method.rows(cell.actions, cell.threshold)
    ring = ActionRing(capacity, joints, method.aggregate())
    witness = Witness(capacity, joints, method, outcome)
    loop = ActuatorLoop(
        ring,
        PythonPort(world, joints),
        fps=FPS,
        lower=policy.lower,
        upper=policy.upper,
        max_speed=method.max_speed,
        history=1,
    )
    loop.prime(world.read())
    server = Server(policy, method, rows, round_trips(cell.link, seed, MAX_TICKS), clock, outcome)
    seen_tick: dict[int, int] = {}  # by observation

    def send(observation: Observation) -> bool:
        seen_tick[observation.id] = server.tick
        return server.send(observation)

    latency = _measured(cell.link, seed)
    observer = Observer(
        Look(policy.description, policy.views(clock), policy.vectors, False, 1.0, Task("")),
        ring,
        send,
        on_lost=lambda: None,
        stages=StageTimes((*STAGES, "round_trip")),
        fps=FPS,
        threshold=method.ask_at(cell.actions, cell.threshold, latency),
        latency=latency,
        rows=rows,
        clock_ns=clock,
    )
    observer.connected(policy.description)
    first_chunk_at: int | None = None
    while not world.episode.done:
        tick_ns = round(server.tick * 1e9 / FPS)
        for answer in server.due(tick_ns):
            merges = ring.merges
            observer.answered(answer)
            if isinstance(answer, Chunk) and ring.merges > merges:
                witness.merge(answer, seen_tick[answer.observation])
                first_chunk_at = server.starved if first_chunk_at is None else first_chunk_at
        clock.now_ns = tick_ns
        loop.tick(tick_ns)
        record = loop.record
        witness.pick(record, server.tick)
        observer.observe(record)
        world.advance()
        server.tick += 1
        server.starved += record.level == 0
    outcome.success, outcome.ticks = world.episode.success, world.episode.ticks
    outcome.starved = server.starved
    outcome.starved_after_first_chunk = server.starved - (server.starved if first_chunk_at is None else first_chunk_at)
    outcome.lost = observer.counts["lost"]
    return outcome


def _measured(link: str, seed: int) -> LatencyWindow:
    """What the observer knows of the link at the start: twenty answers, as in the later episodes of a run."""
    window = LatencyWindow.for_risk(STARVE_RISK, slack_s=1 / FPS)
    before = round_trips(link, WEATHER_BEFORE + seed, MAX_TICKS)
    for round_trip_s in before[np.isfinite(before)][:: MAX_TICKS // 25][:20]:
        window.record(float(round_trip_s))
    return window
