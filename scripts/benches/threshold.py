"""`chunk_size_threshold: auto` against fixed 0.5 and 0.7 in real time on the virtual arm, at several latencies.

    python -m scripts.benches.threshold --episodes=6

Three processes over pty, HTTP and gRPC, as `edge-runtime demo` has them; the filter is off, so that each request is an
inference. The first episode of each run is its warm-up: until ten round trips are known, auto is only careful.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edge_runtime.errors import ConfigError
from edge_runtime.program import flags
from edge_runtime.tools.demo.processes import Process, ours

BUNDLE = "act_so101_pick_place"
THRESHOLDS = ("auto", "0.5", "0.7")


@dataclass
class ThresholdConfig:
    """Rules for the threshold on the virtual arm."""

    episodes: int = 6  # of each run; the first is its warm-up
    first_seed: int = 0
    latencies_ms: list[float] = field(default_factory=lambda: [100.0, 300.0, 500.0])
    quick: bool = False  # 2 episodes at 300 ms

    def __post_init__(self) -> None:
        if self.quick:
            self.episodes, self.latencies_ms = 2, [300.0]
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


def main(argv: list[str]) -> int:
    config = flags.parse(ThresholdConfig, argv, prog="threshold")
    print(f"{'latency':<10}{'threshold':<11}{'starved':>9}{'warm-up':>9}{'chunks/s':>10}{'solved':>8}")
    met = True
    with tempfile.TemporaryDirectory(prefix="bench-threshold-") as work, _arm(Path(work)) as arm:
        for latency_ms in config.latencies_ms:
            with _server(Path(work), latency_ms) as socket:
                runs = {threshold: _run(config, threshold, socket, arm, Path(work)) for threshold in THRESHOLDS}
            for threshold, run in runs.items():
                print(
                    f"{latency_ms:<6g} ms {threshold:<11}{run.starved:>9}{run.warm_up:>9}{run.chunks_per_s:>10.2f}"
                    f"{f'{run.solved}/{config.episodes}':>8}",
                    flush=True,
                )
            met &= runs["auto"].starved == 0 and runs["auto"].chunks_per_s <= runs["0.7"].chunks_per_s
    latencies = ", ".join(f"{each:g}" for each in config.latencies_ms)
    print(
        f"Reach: auto on the virtual arm at {latencies} ms: 0 starved ticks after warm-up and not more inferences than "
        f"fixed 0.7: {'met' if met else 'missed'}"
    )
    return 0


@contextmanager
def _arm(work: Path) -> Iterator[dict[str, Any]]:
    arguments = ["virtual-arm", "--http_port=0", f"--calibration_dir={work}", "--cameras=[]"]
    with Process("virtual-arm", ours("edge_runtime", *arguments, "--until_stdin_closes=true"), work) as arm:
        yield arm.report()


@contextmanager
def _server(work: Path, latency_ms: float) -> Iterator[str]:
    socket = f"unix:{work}/policy-{latency_ms:g}.sock"
    arguments = ["start", BUNDLE, f"--listen={socket}", f"--inject_latency_ms={latency_ms:g}"]
    with Process("policy-server", ours("policy_server", *arguments, "--until_stdin_closes=true"), work) as server:
        server.wait_for("serving [")
        yield socket


def _run(config: ThresholdConfig, threshold: str, socket: str, arm: dict[str, Any], work: Path) -> Run:
    summary = work / "summary.json"
    arguments = [
        "start",
        "--robot.type=so101_follower",
        f"--robot.port={arm['port']}",
        f"--robot.id={arm['robot_id']}",
        f"--robot.calibration_dir={arm['calibration_dir']}",
        f"--extra_state={{environment_state: {arm['http']}/state}}",
        f"--server_address={socket}",
        f"--chunk_size_threshold={threshold}",
        "--similarity_tolerance=0",
        f"--episodes={config.episodes}",
        f"--first_seed={config.first_seed}",
        f"--reset_url={arm['http']}/episode",
        f"--summary={summary}",
    ]
    with Process("runtime", ours("edge_runtime", *arguments), work) as runtime:
        runtime.finish()
    return Run.of(json.loads(summary.read_text()))


if __name__ == "__main__":
    sys.exit(flags.run_main(main, sys.argv[1:], "threshold"))
