"""Sequential against asynchronous in real time on the virtual arm, over many seeds: task time, success, starved ticks.

python -m scripts.benches.asynchronous --policy=state --episodes=50 --latency_ms=300
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from edge_runtime.tools.demo.cli import DemoConfig, Screen, table
from edge_runtime.tools.demo.comparison import Comparison, Verdict
from scripts.rig.bench import reach, start

FASTER = 1.25


@dataclass
class BenchConfig(DemoConfig):
    """Sequential against asynchronous on the virtual arm."""

    quick: bool = False  # 2 episodes

    def __post_init__(self) -> None:
        if self.quick:
            self.episodes = 2
        super().__post_init__()


def main(config: BenchConfig) -> None:
    policy = config.policy or "state"
    with tempfile.TemporaryDirectory(prefix="bench-async-") as work:
        screen = Screen(config.episodes)
        runs = Comparison(
            policy, config.episodes, config.first_seed, config.latency_ms, config.thresholds, Path(work)
        ).run(screen)
        screen.end()
    print(table(runs))
    verdict = Verdict.of(runs)
    starved = runs["async"].starved
    reach(
        f"policy {policy}, {config.episodes} seeds from {config.first_seed}, {config.latency_ms:g} ms injected, "
        f"g = {config.chunk_size_threshold:g}, {config.taken} actions in sequence: speed-up {verdict.speed_up:.2f} "
        f"(reach {FASTER}), success lower beyond chance: McNemar p = {verdict.p_value:.3f} (reach 0.05), starved after "
        f"the first chunk {starved} (reach 0)",
        verdict.speed_up >= FASTER and verdict.p_value >= 0.05 and not starved,
    )
    for mode, run in runs.items():
        late = run.summary["lateness_s"]
        p50, p99 = late["p50"] * 1e3, late["p99"] * 1e3
        print(f"{mode}: lateness p50 {p50:.2f} ms, p99 {p99:.2f} ms; {run.summary['realtime']}")


if __name__ == "__main__":
    start(BenchConfig, main)
