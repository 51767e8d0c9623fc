"""What the policy server reaches with many robots, one line for each promise: batches, fairness, added time, idleness.

    python -m scripts.benches.server [--quick] [--only=soak]

Robots and server are two processes on this machine, so that on two cores each takes from the other.
"""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass

import onnxruntime

from edge_runtime.errors import UsageError
from edge_runtime.program import flags
from scripts.benches.server import line, reach


@dataclass
class BenchConfig:
    """One run of all measurements, about a quarter of an hour."""

    quick: bool = False  # short ones, within a minute: for a look, not for the record
    only: str = ""  # one part: small, seeing, forwards, most, replace or soak
    threads: int = 1  # of one inference; the others serve
    debug: bool = False


def main(argv: list[str]) -> int:
    config = flags.parse(BenchConfig, argv, prog="server")
    if config.only and config.only not in reach.PARTS:
        raise UsageError(f"only: {config.only} is not one of {', '.join(reach.PARTS)}")
    cores = len(os.sched_getaffinity(0))
    print(f"{platform.machine()}, {cores} cores, onnxruntime {onnxruntime.__version__}, threads {config.threads}")
    missed = 0
    for part in reach.PARTS if not config.only else [config.only]:
        for each in reach.PARTS[part](line.QUICK if config.quick else line.FULL, config.threads):
            verdict = {True: "met", False: "MISSED", None: "a number"}[each.met]
            print(f"Reach: {each.what}: {each.reach}: {each.measured}: {verdict}", flush=True)
            missed += each.met is False
    print(f"{missed} missed" if missed else "all met")
    return 0


if __name__ == "__main__":
    sys.exit(flags.run_main(main, sys.argv[1:], "server"))
