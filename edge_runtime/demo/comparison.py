"""Sequential against asynchronous on the virtual arm: same seeds, same policy, same injected latency."""

from __future__ import annotations

import csv
import json
import statistics
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import comb
from pathlib import Path
from typing import Any, Protocol

from edge_runtime.config import Mode
from edge_runtime.demo.processes import Process

MODES: tuple[Mode, ...] = ("sequential", "async")
BUNDLES = {"state": "act_so101_pick_place", "images": "act_so101_cubes"}
POLL_S = 0.2


@dataclass(frozen=True)
class Run:
    """One mode's episodes, its summary, and its queue's level: rows of (seconds, episode, level)."""

    mode: Mode
    summary: dict[str, Any]
    levels: list[tuple[float, int, int]]

    @property
    def episodes(self) -> list[dict[str, Any]]:
        return list(self.summary["episodes"])

    @property
    def solved(self) -> dict[int, float]:
        """Seed -> task time in seconds, of the seeds solved."""
        return {episode["seed"]: episode["time_s"] for episode in self.episodes if episode["success"]}

    @property
    def starved(self) -> int:
        """Ticks without a row after each episode's first chunk."""
        return sum(episode["starved_after_first_chunk"] for episode in self.episodes)


@dataclass(frozen=True)
class Verdict:
    """Two modes side by side, over the seeds that both solved."""

    times_s: dict[Mode, float]
    speed_up: float
    p_value: float

    @classmethod
    def of(cls, runs: dict[Mode, Run]) -> Verdict:
        solved = {mode: run.solved for mode, run in runs.items()}
        both = sorted(solved["sequential"].keys() & solved["async"].keys())
        if not both:
            return cls(dict.fromkeys(runs, float("nan")), float("nan"), 1.0)
        times: dict[Mode, float] = {mode: statistics.median(solved[mode][seed] for seed in both) for mode in runs}
        only_sequential = len(solved["sequential"].keys() - solved["async"].keys())
        only_async = len(solved["async"].keys() - solved["sequential"].keys())
        return cls(times, times["sequential"] / times["async"], mcnemar(only_sequential, only_async))


def mcnemar(worse: int, better: int) -> float:
    """One-sided exact McNemar test: the chance of at least `worse` losses among the pairs that differ by luck alone."""
    pairs = worse + better
    return sum(comb(pairs, k) for k in range(worse, pairs + 1)) / 2.0**pairs


class Watcher(Protocol):
    """Is told when a mode begins (with the arm's ready line), and then how the running episode goes."""

    def begin(self, mode: Mode, arm: dict[str, Any]) -> None: ...
    def progress(self, mode: Mode, episode: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class Comparison:
    """What to compare; `folder` takes the logs and summaries."""

    policy: str
    episodes: int
    first_seed: int
    latency_ms: float
    threshold: float
    folder: Path
    runtime_flags: tuple[str, ...] = ()

    def run(self, watcher: Watcher) -> dict[Mode, Run]:
        """Run both modes. Raises what a process raised."""
        with ExitStack() as stack:
            ready = stack.enter_context(self._arm())
            socket = f"unix:{self.folder}/policy.sock"
            stack.enter_context(self._server(socket))
            return {mode: self._run_mode(mode, socket, ready, watcher) for mode in MODES}

    @contextmanager
    def _arm(self) -> Iterator[dict[str, Any]]:
        arguments = [
            "virtual-arm",
            "--http_port=0",
            f"--calibration_dir={self.folder}",
            f"--goal={'fixed' if self.policy == 'images' else 'random'}",
            "--until_stdin_closes=true",
        ]
        with Process("virtual-arm", "edge_runtime.cli", arguments, self.folder) as arm:
            yield arm.ready()

    @contextmanager
    def _server(self, socket: str) -> Iterator[Process]:
        arguments = [
            *("start", BUNDLES[self.policy], f"--listen={socket}"),
            f"--inject_latency_ms={self.latency_ms:g}",
            "--until_stdin_closes=true",
        ]
        with Process("policy-server", "policy_server", arguments, self.folder) as server:
            yield server

    def _run_mode(self, mode: Mode, socket: str, arm: dict[str, Any], watcher: Watcher) -> Run:
        watcher.begin(mode, arm)
        summary, levels = self.folder / f"{mode}.json", self.folder / f"{mode}-queue.csv"
        arguments = [
            "start",
            "--robot.type=so101_follower",
            f"--robot.port={arm['port']}",
            f"--robot.id={arm['robot_id']}",
            f"--robot.calibration_dir={arm['calibration_dir']}",
            f"--server_address={socket}",
            f"--mode={mode}",
            f"--chunk_size_threshold={self.threshold:g}",
            f"--episodes={self.episodes}",
            f"--first_seed={self.first_seed}",
            f"--reset_url={arm['http']}/episode",
            f"--summary={summary}",
            f"--queue_log={levels}",
            *self.runtime_flags,
        ]
        if self.policy == "state":
            arguments.append(f"--extra_state={{environment_state: {arm['http']}/state}}")
        else:
            cameras = {name: {"type": "opencv", "index_or_path": url} for name, url in arm["cameras"].items()}
            arguments.append(f"--robot.cameras={json.dumps(cameras)}")
        with Process(f"runtime-{mode}", "edge_runtime.cli", arguments, self.folder) as runtime:
            while runtime.poll() is None:
                with urllib.request.urlopen(f"{arm['http']}/episode", timeout=5) as response:
                    watcher.progress(mode, json.load(response))
                time.sleep(POLL_S)
            runtime.finish()
        with levels.open(newline="") as file:
            rows = [(float(row["time_s"]), int(row["episode"]), int(row["level"])) for row in csv.DictReader(file)]
        return Run(mode, json.loads(summary.read_text()), rows)
