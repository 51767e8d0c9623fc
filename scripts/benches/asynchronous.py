"""Sequential against asynchronous in real time on the virtual arm, over many seeds: task time, success, starved ticks.

python -m scripts.benches.asynchronous --policy=state --episodes=50 --latency_ms=300
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from edge_runtime.program import flags
from edge_runtime.tools.demo.cli import DemoConfig, Screen, table
from edge_runtime.tools.demo.comparison import Comparison, Verdict


@dataclass
class BenchConfig(DemoConfig):
    """sequential against asynchronous on the virtual arm."""

    quick: bool = False  # 2 episodes

    def __post_init__(self) -> None:
        if self.quick:
            self.episodes = 2
        super().__post_init__()


def main(argv: list[str]) -> int:
    config = flags.parse(BenchConfig, argv, prog="asynchronous")
    policy = config.policy or "state"
    with tempfile.TemporaryDirectory(prefix="bench-async-") as work:
        screen = Screen(config.episodes)
        runs = Comparison(
            policy, config.episodes, config.first_seed, config.latency_ms, config.thresholds, Path(work)
        ).run(screen)
        screen.end()
    print(table(runs))
    verdict = Verdict.of(runs)
    print(
        f"policy {policy}, {config.episodes} seeds from {config.first_seed}, {config.latency_ms:g} ms injected, "
        f"g = {config.chunk_size_threshold:g}, {config.taken} actions in sequence: speed-up {verdict.speed_up:.2f}, "
        f"McNemar p = {verdict.p_value:.3f} (success lower beyond chance below 0.05), "
        f"starved after the first chunk {runs['async'].starved}"
    )
    for mode, run in runs.items():
        late = run.summary["lateness_s"]
        p50, p99 = late["p50"] * 1e3, late["p99"] * 1e3
        print(f"{mode}: lateness p50 {p50:.2f} ms, p99 {p99:.2f} ms; {run.summary['realtime']}")
    return 0


if __name__ == "__main__":
    sys.exit(flags.run_main(main, sys.argv[1:], "asynchronous"))
