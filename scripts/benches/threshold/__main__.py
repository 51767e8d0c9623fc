"""Rules for `chunk_size_threshold`, simulated and on the virtual arm: starved ticks, and how often each rule asks.

    python -m scripts.benches.threshold                 # 10⁶ simulated chunks of each kind of latency, then the arm
    python -m scripts.benches.threshold --arm=false     # the simulation alone

The first episode of each run is its warm-up: until ten round trips are known, auto is only careful.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from edge_runtime.config import StartConfig
from edge_runtime.errors import ConfigError
from edge_runtime.program.schema import Range
from scripts.benches.threshold import simulation
from scripts.rig.bench import reach, start
from scripts.rig.program import Arm, Edge, Server

BUNDLE = "act_so101_pick_place"
THRESHOLDS = ("auto", "0.5", "0.7")


@dataclass
class ThresholdConfig:
    """Rules for the threshold against each other."""

    chunks: int = 1_000_000  # simulated, of each kind of latency
    seed: int = 0  # of the simulation
    auto_floor: Annotated[float, Range(0, 1)] = StartConfig.auto_floor  # in the simulation; 0 = auto has none
    arm: bool = True
    episodes: int = 6  # of each run on the arm; the first is its warm-up
    first_seed: int = 0
    latencies_ms: list[float] = field(default_factory=lambda: [100.0, 300.0, 500.0])
    quick: bool = False  # 50 000 chunks; 2 episodes at 300 ms

    def __post_init__(self) -> None:
        if self.quick:
            self.chunks, self.episodes, self.latencies_ms = 50_000, 2, [300.0]
        if self.episodes < 2:
            raise ConfigError(f"episodes: {self.episodes} is less than 2, one of them warm-up")


@dataclass(frozen=True)
class Run:
    """What counts of a summary; `starved` after the first chunk of each episode but the first."""

    starved: int
    warm_up: int
    chunks: int
    ticks: int
    solved: int

    @classmethod
    def of(cls, summary: dict[str, Any]) -> Run:
        first, *rest = (episode["starved_after_first_chunk"] for episode in summary["episodes"])
        solved = sum(episode["success"] for episode in summary["episodes"])
        return cls(sum(rest), first, summary["chunks"]["merged"], summary["loop"]["ticks"], solved)

    @property
    def chunks_per_s(self) -> float:
        return self.chunks / self.ticks * 30


def main(config: ThresholdConfig) -> None:
    simulation.play(simulation.Simulation(config.chunks, auto_floor=config.auto_floor, seed=config.seed))
    if config.arm:
        on_the_arm(config)


def on_the_arm(config: ThresholdConfig) -> None:
    """Print a row for each run, and the line for the reach."""
    print(f"{'latency':<10}{'threshold':<11}{'starved':>9}{'warm-up':>9}{'chunks/s':>10}{'solved':>8}")
    met = True
    with tempfile.TemporaryDirectory(prefix="bench-threshold-") as name, Arm(Path(name), "--cameras=[]") as arm:
        for latency_ms in config.latencies_ms:
            with Server(Path(name), BUNDLE, f"--inject_latency_ms={latency_ms:g}") as server:
                runs = {threshold: _run(config, threshold, server, arm, Path(name)) for threshold in THRESHOLDS}
            for threshold, run in runs.items():
                print(
                    f"{latency_ms:<6g} ms {threshold:<11}{run.starved:>9}{run.warm_up:>9}{run.chunks_per_s:>10.2f}"
                    f"{f'{run.solved}/{config.episodes}':>8}",
                    flush=True,
                )
            met &= runs["auto"].starved == 0 and runs["auto"].chunks_per_s <= runs["0.7"].chunks_per_s
    latencies = ", ".join(f"{each:g}" for each in config.latencies_ms)
    reach(
        f"auto on the virtual arm at {latencies} ms: 0 starved ticks after warm-up, not more inferences than fixed 0.7",
        met,
    )


def _run(config: ThresholdConfig, threshold: str, server: Server, arm: Arm, work: Path) -> Run:
    summary = work / "summary.json"
    flags = [
        *(f"--server_address={server.address}", f"--chunk_size_threshold={threshold}", "--similarity_tolerance=0"),
        *(f"--episodes={config.episodes}", f"--first_seed={config.first_seed}"),
        *(f"--reset_url={arm.ready['http']}/episode", f"--summary={summary}"),
    ]
    with Edge(work, *arm.flags, *flags) as edge:
        edge.patience_s = None  # as long as its episodes take
        edge.finish()
    return Run.of(json.loads(summary.read_text()))


if __name__ == "__main__":
    start(ThresholdConfig, main)
