"""What the policy server reaches with many robots, one line for each promise: batches, fairness, added time, idleness.

    python -m scripts.benches.server [--quick] [--only=soak]

Robots and server are two processes on this machine, so that on two cores each takes from the other.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass

import onnxruntime

from edge_runtime.errors import UsageError
from scripts.benches.server import line, reach
from scripts.rig import bench


@dataclass
class BenchConfig:
    """One run of all measurements, about a quarter of an hour."""

    quick: bool = False  # short ones, within a minute: for a look, not for the record
    only: str = ""  # one part: small, seeing, forwards, most, replace or soak
    threads: int = 1  # of one inference; the others serve
    debug: bool = False


def main(config: BenchConfig) -> None:
    if config.only and config.only not in reach.PARTS:
        raise UsageError(f"only: {config.only} is not one of {', '.join(reach.PARTS)}")
    cores = len(os.sched_getaffinity(0))
    print(f"{platform.machine()}, {cores} cores, onnxruntime {onnxruntime.__version__}, threads {config.threads}")
    for part in reach.PARTS if not config.only else [config.only]:
        for each in reach.PARTS[part](line.QUICK if config.quick else line.FULL, config.threads):
            found = f"{each.what}: {each.reach}: {each.measured}"
            if each.met is None:
                print(f"{found}", flush=True)
            else:
                bench.reach(found, each.met)


if __name__ == "__main__":
    bench.start(BenchConfig, main)
