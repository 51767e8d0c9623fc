"""Whether the profiler's parts sum to the round trip on loopback, and what the profiler itself costs.

python -m scripts.benches.profiler
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.rig.bench import reach, start
from scripts.rig.program import Program, Server

BUNDLES = ("act_so101_pick_place", "act_so101_cubes")
LEFT_PART, LEFT_S = 0.05, 0.001  # of a round trip may be left as `other`
COST = 0.02  # of the loop's period


@dataclass
class ProfilerConfig:
    """The profiler profiled."""

    duration_s: float = 30.0  # for each policy
    quick: bool = False  # 6 s

    def __post_init__(self) -> None:
        if self.quick:
            self.duration_s = 6.0


def main(config: ProfilerConfig) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-profiler-") as work:
        for bundle in BUNDLES:
            _judge(bundle, _profile(bundle, config.duration_s, Path(work)))


def _profile(bundle: str, duration_s: float, work: Path) -> dict[str, Any]:
    numbers = work / f"{bundle}.json"
    with Server(work, bundle) as server:
        asked = [f"--server_address={server.address}", f"--duration_s={duration_s:g}", "--chunk_size_threshold=1"]
        arguments = ["profile", *asked, "--idle_gap_ms=50", f"--json={numbers}"]
        with Program("edge-runtime", arguments, work) as profile:
            profile.finish()
    found: dict[str, Any] = json.loads(numbers.read_text())
    return found


def _judge(bundle: str, found: dict[str, Any]) -> None:
    trip, other = found["warm_s"]["round_trip"], found["warm_s"]["other"]
    left = LEFT_PART * trip["p50"] + LEFT_S
    cost = float(found["profiler_cost"])
    reach(
        f"{bundle}: {other['p50'] * 1e3:.2f} ms of {trip['p50'] * 1e3:.2f} are other (p50 of {trip['n']}; reach "
        f"{left * 1e3:.2f}), the profiler takes {cost:.3%} of the period (reach {COST:.0%})",
        abs(other["p50"]) <= left and cost < COST,
    )


if __name__ == "__main__":
    start(ProfilerConfig, main)
