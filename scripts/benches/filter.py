"""What the similarity filter saves and costs in closed loop: pauses, and a block that is taken away in the middle.

    python -m scripts.benches.filter --episodes=40

The virtual arm picks and places by its cameras a block that is shifted while it reaches, then stands still for as long
as the seed says, until the block is taken away. Product code for planner, loop, codec and filter, on a made-up
clock: the same numbers each time.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Literal

import numpy as np

from edge_runtime._realtime import ActuatorLoop, PythonPort
from edge_runtime.config import StartConfig
from edge_runtime.link.uplink import BEST_QUALITY
from edge_runtime.planning.planner import Planner, PlannerSettings
from edge_runtime.planning.sensors import CameraView, Sensors
from edge_runtime.planning.task import Task
from edge_runtime.tools.demo.comparison import mcnemar
from edge_runtime.virtual_arm.scene import FIXED_GOAL
from edge_runtime.wire.codec import ObservationAssembler, encode_observation
from edge_runtime.wire.frames import compress
from edge_runtime.wire.messages import Answer, Chunk, Frame, Observation, Pixels, Skipped
from policy_server.serving.filter import Filter, thumbnail
from scripts.benches.asyncbench import policy
from scripts.benches.asyncbench.policy import LoadedPolicy
from scripts.rig.bench import line, start

FPS = 30
SKIPPED_S = 0.02  # until the answer to an observation that is not run
REACTED = 3.0  # joint units (L2) from where the arm stood when the block moved
TABLE = np.array([[0.15, -0.10], [0.27, 0.10]])  # low and high x, y: where the policy was trained to find the block
GOAL_M = 0.05
SHIFT_M, SHIFT_AFTER = 0.03, (2, 12)  # ticks: later than that the policy, which never saw such a thing, is lost
PAUSE_S = (6.0, 12.0)
AWAY_M = 0.1
NUDGE_M = 0.02
WATCHED_S = 2  # after the block went away
FILTERS = {"off": (0.0, 0.0), "joint": (1.0, 0.0), "joint+image": (1.0, StartConfig.image_tolerance)}


@dataclass
class FilterConfig:
    """Filter off, joint, joint+image on the same seeds."""

    episodes: int = 40
    first_seed: int = 0
    latency_ms: float = 150.0
    thresholds: list[str] = field(default_factory=lambda: ["0.7"])  # or auto
    processes: int = 0  # 0 = one for each core
    quick: bool = False  # 6 episodes
    json: Path | None = None

    def __post_init__(self) -> None:
        if self.quick:
            self.episodes = 6


@dataclass(frozen=True)
class Trial:
    """One seed under one filter at one threshold."""

    filter: str
    threshold: str
    seed: int
    latency_s: float


@dataclass
class Outcome:
    """Times in seconds; `task_s` is None when the attempt failed."""

    seed: int
    inferences: int = 0
    skipped: int = 0
    starved: int = 0  # ticks after the first chunk
    ticks: int = 0
    reacted_s: float | None = None  # from the block's going away to the arm's first move
    task_s: float | None = None


class Room:
    """The scene as the loop's robot: an attempt in which the block is shifted, a pause, the block goes away."""

    def __init__(self, loaded: LoadedPolicy, seed: int) -> None:
        self.scene = loaded.scene
        random = np.random.default_rng([2, seed])
        self.episode = self.scene.reset(seed, FIXED_GOAL)
        self._goals = self.scene.joint_state()
        self._shift_at = int(random.integers(*SHIFT_AFTER))
        self._shifted = self._draw(random, self._block, SHIFT_M)
        self._pause = int(random.uniform(*PAUSE_S) * FPS)
        self._away = self._draw(random, np.array(FIXED_GOAL), AWAY_M)
        self._stood = self._goals
        self.phase: Literal["attempt", "pause", "reaction", "failed", "done"] = "attempt"
        self.ticks = 0  # of the present phase
        self.task_ticks = 0
        self.reacted: int | None = None

    def read(self) -> np.ndarray:
        return self.scene.joint_state()

    def write(self, goals: np.ndarray) -> None:
        self._goals = goals

    def advance(self) -> None:
        """A control tick; then what it leads to."""
        self.scene.step(self._goals)
        self.ticks += 1
        if self.phase == "attempt":
            if self.ticks == self._shift_at:
                self.episode = self.scene.place_again(self._shifted)
            elif self.episode.done:
                self.task_ticks = self.ticks
                self._enter("pause" if self.episode.success else "failed")
        elif self.phase == "pause" and self.ticks == self._pause:
            self.scene.place_again(self._away)
            self._stood = self.scene.joint_state()
            self._enter("reaction")
        elif self.phase == "reaction":
            if self.reacted is None and np.linalg.norm(self.scene.joint_state() - self._stood) > REACTED:
                self.reacted = self.ticks
            if self.ticks == WATCHED_S * FPS:
                self._enter("done")

    def _enter(self, phase: Literal["pause", "reaction", "failed", "done"]) -> None:
        self.phase, self.ticks = phase, 0

    @property
    def _block(self) -> np.ndarray:
        return self.scene.environment_state()[:2]

    def _draw(self, random: np.random.Generator, start: np.ndarray, distance_m: float) -> tuple[float, float]:
        """A place on the table so far from `start`, and not on the goal."""
        while True:
            angle = random.uniform(0, 2 * np.pi)
            there = start + distance_m * np.array([np.cos(angle), np.sin(angle)])
            if (there >= TABLE[0]).all() and (there <= TABLE[1]).all() and math.dist(there, FIXED_GOAL) > GOAL_M:
                return float(there[0]), float(there[1])


@dataclass
class Clock:
    now_ns: int = 0

    def __call__(self) -> int:
        return self.now_ns


@dataclass(frozen=True)
class Picture:
    pixels: Pixels
    time_ns: int

    @property
    def since_ns(self) -> int:
        return self.time_ns


class Camera:
    """A view of the scene with the noise of a sensor, without which a filter has it easy."""

    def __init__(self, view: CameraView, random: np.random.Generator) -> None:
        self._view, self._random = view, random

    def latest(self) -> Picture:
        clean = self._view.latest()
        assert clean is not None  # a scene can always be looked at
        noisy = clean.pixels + self._random.integers(-1, 2, clean.pixels.shape, np.int16)
        return Picture(np.clip(noisy, 0, 255).astype(np.uint8), clean.time_ns)


class Server:
    """Decides as a session does; answers are due after the round trip, or at once if skipped."""

    def __init__(self, loaded: LoadedPolicy, trial: Trial, clock: Clock, outcome: Outcome) -> None:
        self._loaded, self._trial, self._clock, self._outcome = loaded, trial, clock, outcome
        self._filter = Filter(*FILTERS[trial.filter])
        self._assembler = ObservationAssembler(loaded.description)
        self.due: list[tuple[int, Answer]] = []

    def send(self, observation: Observation) -> bool:
        whole = [self._assembler.feed(message) for message in encode_observation(observation, BEST_QUALITY)]
        assert whole[-1] is not None
        arrived = whole[-1][0]
        reason = None if arrived.must_go else self._filter.verdict(arrived)
        if reason is None:
            self._outcome.inferences += 1
            self._filter.succeeded(arrived)
            actions = self._loaded.infer(arrived)
            answer: Answer = Chunk(arrived.id, arrived.session, arrived.timestep, actions, self._loaded.digest)
        else:
            self._outcome.skipped += 1
            answer = Skipped(arrived.id, reason)
        took_s = self._trial.latency_s if reason is None else SKIPPED_S
        self.due.append((self._clock.now_ns + int(took_s * 1e9), answer))
        return True

    is_uploading = False

    def suspect(self) -> None:
        """No answer is ever lost."""


def play(trial: Trial) -> Outcome:
    """The outcome of one trial: the same numbers every time."""
    loaded = policy.load("images")
    outcome, clock, room = Outcome(trial.seed), Clock(), Room(loaded, trial.seed)
    server = Server(loaded, trial, clock, outcome)
    noise = np.random.default_rng([3, trial.seed])
    cameras = {name: Camera(view, noise) for name, view in loaded.views(clock).items()}
    planner = Planner(
        Sensors(loaded.description, cameras, {}, False, 1.0, Task("")),
        PlannerSettings(
            fps=FPS,
            chunk_size_threshold="auto" if trial.threshold == "auto" else float(trial.threshold),
            filtered=trial.filter != "off",
        ),
        server,
        clock_ns=clock,
    )
    loop = ActuatorLoop(
        planner.ring,
        PythonPort(room, planner.ring.joints),
        fps=FPS,
        lower=loaded.lower,
        upper=loaded.upper,
        max_speed=300.0,
        history=1,
    )
    loop.prime(room.read())
    planner.connected(loaded.description)
    while room.phase not in ("failed", "done"):
        tick_ns = round(outcome.ticks * 1e9 / FPS)
        while server.due and server.due[0][0] <= tick_ns:
            clock.now_ns, answer = server.due.pop(0)
            planner.answered(answer)
        clock.now_ns = tick_ns
        loop.tick(tick_ns)
        record = loop.record
        planner.observe(record)
        outcome.starved += record.level == 0 and record.merges > 0
        room.advance()
        outcome.ticks += 1
    outcome.reacted_s = None if room.reacted is None else room.reacted / FPS
    outcome.task_s = None if room.phase == "failed" else room.task_ticks / FPS
    return outcome


def levels(seeds: range) -> str:
    """By how much small pictures differ: of a still scene at most, and after a block moved by NUDGE_M at least."""
    loaded, clock = policy.load("images"), Clock()
    still, moved = 0.0, 255.0
    for seed in seeds:
        loaded.scene.reset(seed, FIXED_GOAL)
        noise = np.random.default_rng([4, seed])
        cameras = {name: Camera(view, noise) for name, view in loaded.views(clock).items()}
        before, same = _small(cameras), _small(cameras)
        x, y = loaded.scene.environment_state()[:2]
        loaded.scene.place_again((x + NUDGE_M, y))
        after = _small(cameras)
        still = max(still, *(np.abs(before[name] - same[name]).max() for name in cameras))
        moved = min(moved, max(np.abs(before[name] - after[name]).max() for name in cameras))
    return (
        f"small pictures of {len(seeds)} scenes: still they differ by {still:g} levels at most, "
        f"a block moved by {NUDGE_M * 1e3:g} mm by {moved:g} at least"
    )


def _small(cameras: dict[str, Camera]) -> dict[str, np.ndarray]:
    """Each camera's small picture, as the server sees it: of a JPEG."""
    frames = [Frame.raw(name, camera.latest().pixels) for name, camera in cameras.items()]
    return {frame.camera: thumbnail(compress(frame, BEST_QUALITY)).astype(np.int16) for frame in frames}


def main(config: FilterConfig) -> None:
    began_s = time.monotonic()
    print(
        f"{config.episodes} seeds from {config.first_seed}, pauses of {PAUSE_S[0]:g} to {PAUSE_S[1]:g} s, "
        f"{config.latency_ms:g} ms round trip"
    )
    print(
        f"{'threshold':<11}{'filter':<13}{'inferences':>11}{'skipped':>9}{'success':>9}{'task time':>11}"
        f"{'reaction':>10}{'starved':>9}"
    )
    everything, verdicts = {}, []
    with multiprocessing.get_context("spawn").Pool(config.processes or None) as pool:
        for threshold in config.thresholds:
            played = _play_all(pool, config, threshold)
            for name, outcomes in played.items():
                print(_row(threshold, name, outcomes), flush=True)
                everything[f"{threshold}/{name}"] = [asdict(each) for each in outcomes]
            verdicts.append(_verdict(threshold, *played.values()))
    print(levels(range(config.first_seed, config.first_seed + config.episodes)))
    print(*verdicts, sep="\n")
    if config.json is not None:
        config.json.write_text(json.dumps(everything, indent=1) + "\n")
    print(f"{time.monotonic() - began_s:.0f} s")


def _play_all(pool: Pool, config: FilterConfig, threshold: str) -> dict[str, list[Outcome]]:
    """Filter -> the outcomes of all seeds in order, with a line of progress on a terminal."""
    seeds = range(config.first_seed, config.first_seed + config.episodes)
    trials = [Trial(name, threshold, seed, config.latency_ms / 1e3) for seed in seeds for name in FILTERS]
    played: dict[str, list[Outcome]] = {name: [] for name in FILTERS}
    for number, (trial, outcome) in enumerate(zip(trials, pool.imap(play, trials), strict=True), start=1):
        played[trial.filter].append(outcome)
        if sys.stderr.isatty():
            print(f"\r{threshold}: {number} of {len(trials)} trials\r", end="", file=sys.stderr, flush=True)
    return played


def _row(threshold: str, name: str, outcomes: Sequence[Outcome]) -> str:
    solved = [each.task_s for each in outcomes if each.task_s is not None]
    return (
        f"{threshold:<11}{name:<13}{sum(each.inferences for each in outcomes):>11}"
        f"{sum(each.skipped for each in outcomes):>9}{f'{len(solved)}/{len(outcomes)}':>9}"
        f"{statistics.median(solved or [math.nan]):>9.2f} s{_reaction_s(outcomes):>8.2f} s"
        f"{sum(each.starved for each in outcomes):>9}"
    )


def _reaction_s(outcomes: Sequence[Outcome]) -> float:
    """Median over the seeds in which the arm saw the block move and did something about it."""
    return statistics.median([each.reacted_s for each in outcomes if each.reacted_s is not None] or [math.nan])


def _verdict(threshold: str, off: Sequence[Outcome], joint: Sequence[Outcome], seeing: Sequence[Outcome]) -> str:
    both = [(a, b) for a, b in zip(off, seeing, strict=True) if a.task_s is not None and b.task_s is not None]
    if not both:
        return line(f"joint+image at {threshold}: no seed was solved both with and without it", False)
    saved = 1 - sum(b.inferences / b.ticks for _, b in both) / sum(a.inferences / a.ticks for a, _ in both)
    worse = sum(a.task_s is not None and b.task_s is None for a, b in zip(off, seeing, strict=True))
    better = sum(a.task_s is None and b.task_s is not None for a, b in zip(off, seeing, strict=True))
    p = mcnemar(worse, better)
    later_s = _reaction_s(seeing) - _reaction_s(off)
    met = saved >= 0.3 and p >= 0.05 and later_s <= 0.2 + 1e-9
    return line(
        f"joint+image at {threshold}: {saved:.0%} fewer inferences per tick (reach 30 %), success lower beyond "
        f"chance: p = {p:.2f} ({worse} lost, {better} gained), reaction {later_s:+.2f} s (reach +0.2; joint "
        f"{_reaction_s(joint) - _reaction_s(off):+.2f}), {sum(each.starved for each in seeing)} starved ticks",
        met,
    )


if __name__ == "__main__":
    start(FilterConfig, main)
