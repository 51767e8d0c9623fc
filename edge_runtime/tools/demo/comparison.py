"""Sequential against asynchronous on the virtual arm: same seeds, same policy, same injected latency.

Asynchronous asks when a part of the chunk is left, and executes that meanwhile. Sequential executes as many actions as
asynchronous does between two looks, 25 of 50 unless told otherwise, then stands still until the next chunk is there.
So both see the scene equally often, and what differs is the waiting. Sequential may also execute whole chunks: then it
stands still half as often, and acts for twice as long on what it saw last.
"""

from __future__ import annotations

import csv
import json
import math
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import comb
from pathlib import Path
from typing import Any, Protocol

from edge_runtime.config import Mode
from edge_runtime.program import direct
from edge_runtime.tools.demo.processes import Process, ours

MODES: tuple[Mode, ...] = ("sequential", "async")
BUNDLES = {"state": "act_so101_pick_place", "images": "act_so101_cubes"}
POLL_S = 0.1


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

    @property
    def waited(self) -> int:
        """Ticks until each episode's first chunk."""
        return sum(int(episode["starved"]) for episode in self.episodes) - self.starved


@dataclass(frozen=True)
class Verdict:
    """Two modes side by side: median times over the seeds that both solved, and how many seeds only one solved."""

    times_s: dict[Mode, float]
    only: dict[Mode, int]

    @classmethod
    def of(cls, runs: dict[Mode, Run]) -> Verdict:
        solved = {mode: run.solved for mode, run in runs.items()}
        both = solved["sequential"].keys() & solved["async"].keys()
        times = {
            mode: statistics.median(times[seed] for seed in both) if both else math.nan
            for mode, times in solved.items()
        }
        return cls(times, {mode: len(times.keys() - both) for mode, times in solved.items()})

    @property
    def speed_up(self) -> float:
        return self.times_s["sequential"] / self.times_s["async"]

    @property
    def p_value(self) -> float:
        """Of asynchronous being worse by luck alone."""
        return mcnemar(worse=self.only["sequential"], better=self.only["async"])


def mcnemar(worse: int, better: int) -> float:
    """One-sided exact McNemar test: the chance of at least `worse` losses among the pairs that differ by luck alone."""
    pairs = worse + better
    return sum(comb(pairs, k) for k in range(worse, pairs + 1)) / 2.0**pairs


class Watcher(Protocol):
    """Is told when a mode begins, then how the running episode goes and where its cameras are (name -> URL)."""

    def begin(self, mode: Mode) -> None: ...
    def progress(self, mode: Mode, episode: dict[str, Any], cameras: dict[str, str]) -> None: ...


@dataclass(frozen=True)
class Comparison:
    """What to compare; `folder` takes the logs and summaries."""

    policy: str
    episodes: int
    first_seed: int
    latency_ms: float
    thresholds: dict[Mode, float]  # sequential leaves that part of a chunk
    folder: Path

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
        with Process("virtual-arm", ours("edge_runtime", *arguments), self.folder) as arm:
            yield arm.report()

    @contextmanager
    def _server(self, socket: str) -> Iterator[Process]:
        arguments = [
            *("start", BUNDLES[self.policy], f"--listen={socket}"),
            f"--inject_latency_ms={self.latency_ms:g}",
            "--until_stdin_closes=true",
        ]
        with Process("policy-server", ours("policy_server", *arguments), self.folder) as server:
            yield server

    def _run_mode(self, mode: Mode, socket: str, arm: dict[str, Any], watcher: Watcher) -> Run:
        watcher.begin(mode)
        summary, levels = self.folder / f"{mode}.json", self.folder / f"{mode}-queue.csv"
        arguments = [
            "start",
            "--robot.type=so101_follower",
            f"--robot.port={arm['port']}",
            f"--robot.id={arm['robot_id']}",
            f"--robot.calibration_dir={arm['calibration_dir']}",
            f"--server_address={socket}",
            f"--mode={mode}",
            f"--chunk_size_threshold={self.thresholds[mode]:g}",
            f"--episodes={self.episodes}",
            f"--first_seed={self.first_seed}",
            f"--reset_url={arm['http']}/episode",
            f"--summary={summary}",
            f"--queue_log={levels}",
            "--robot.bus_timeout_ms=100",  # all share one machine: an answer may wait for a processor
        ]
        if self.policy == "state":
            arguments.append(f"--extra_state={{environment_state: {arm['http']}/state}}")
        else:
            cameras = {name: {"type": "opencv", "index_or_path": url} for name, url in arm["cameras"].items()}
            arguments.append(f"--robot.cameras={json.dumps(cameras)}")
        with Process(f"runtime-{mode}", ours("edge_runtime", *arguments), self.folder) as runtime:
            while runtime.process.poll() is None:
                with direct.urlopen(f"{arm['http']}/episode", 5) as response:
                    watcher.progress(mode, json.load(response), arm["cameras"])
                time.sleep(POLL_S)
            runtime.finish()
        with levels.open(newline="") as file:
            rows = [(float(row["time_s"]), int(row["episode"]), int(row["level"])) for row in csv.DictReader(file)]
        return Run(mode, json.loads(summary.read_text()), rows)
