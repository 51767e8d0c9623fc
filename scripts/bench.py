"""Every script here that has a short version, one after the other, and what each of them found, in one table.

    python scripts/bench.py --quick
    python scripts/bench.py --only='[bench_ring, bench_filter]'

A script takes part by knowing `--quick`. What it says of what is to be reached is shown, not judged: a time depends on
the machine. It fails here when it ends with an error.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass, field
from pathlib import Path

from edge_runtime.errors import EdgeRuntimeError, UsageError
from edge_runtime.program import flags

HERE = Path(__file__).resolve().parent
WIDTH = 120
STOP_S = 10.0
OUTCOMES = {0: "ok", 2: "needs more than --quick", 64: "needs more than --quick"}  # argparse's usage error, and ours
LAST_LINES = 2  # of a script that says nothing of what is to be reached


@dataclass
class BenchConfig:
    """bench.py: all figures in one table."""

    quick: bool = False  # the short versions, five minutes in all
    only: list[str] = field(default_factory=list)  # names without .py; empty = all
    limit_s: float = 100.0  # for each script, with --quick
    budget_s: float = 300.0  # for all, with --quick; what does not fit is left out


@dataclass(frozen=True)
class Result:
    """How a script ended, after how long, and its lines that are worth a place in the table."""

    script: str
    outcome: str
    seconds: float
    lines: list[str]

    @property
    def failed(self) -> bool:
        return self.outcome.startswith("exit")


def scripts() -> list[str]:
    """The names of those that know --quick, in alphabetical order."""
    return [
        path.stem
        for path in sorted(HERE.glob("*.py"))
        if path.name != Path(__file__).name and "quick" in path.read_text(encoding="utf-8")
    ]


def run(script: str, arguments: list[str], limit_s: float | None) -> Result:
    """Run it to its end, or stop it after `limit_s`; what it printed counts either way."""
    began_s = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, str(HERE / f"{script}.py"), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=HERE.parent,
        start_new_session=True,  # what it has started is stopped with it
    )
    try:
        said, complained = process.communicate(timeout=limit_s)
        outcome = OUTCOMES.get(process.returncode, f"exit {process.returncode}")
    except subprocess.TimeoutExpired:
        said, complained = _stop(process)
        outcome = f"stopped after {limit_s:.0f} s"
    lines = said.strip().splitlines()
    if process.returncode > 0:
        lines += complained.strip().splitlines()[-1:]
    return Result(script, outcome, time.monotonic() - began_s, worth(lines))


def _stop(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Ask the script and all that it has started to end, then see to it."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        return process.communicate(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()


def worth(lines: list[str]) -> list[str]:
    """What a script says of what is to be reached; its last words if it says nothing."""
    return [line.strip() for line in lines if "reach" in line.lower()] or [line.strip() for line in lines[-LAST_LINES:]]


def show(result: Result) -> None:
    head = f"{result.script:<22}{result.seconds:>6.0f} s  {result.outcome}"
    print(head)
    for line in result.lines:
        print(textwrap.fill(line, WIDTH, initial_indent="    ", subsequent_indent="      "))
    sys.stdout.flush()


def main(argv: list[str]) -> int:
    config = flags.parse(BenchConfig, argv, prog="bench.py")
    known = scripts()
    for name in config.only:
        if name not in known:
            raise UsageError(f"only: {name!r} is not one of {', '.join(known)}")
    chosen = config.only or known
    began_s = time.monotonic()
    results = []
    for number, script in enumerate(chosen, start=1):
        left_s = config.budget_s - (time.monotonic() - began_s)
        if sys.stderr.isatty():
            print(f"\r{script} ({number} of {len(chosen)}) \x1b[K", end="", file=sys.stderr, flush=True)
        if not config.quick:
            results.append(run(script, [], None))
        elif left_s > 0:
            results.append(run(script, ["--quick"], min(config.limit_s, left_s)))
        else:
            results.append(Result(script, "left out: the time is over", 0.0, []))
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        show(results[-1])
    failed = [result.script for result in results if result.failed]
    print(f"{len(results)} script{'s' * (len(results) != 1)} in {time.monotonic() - began_s:.0f} s")
    if failed:
        raise EdgeRuntimeError(f"failed: {', '.join(failed)}")
    return 0


if __name__ == "__main__":
    sys.exit(flags.run_main(main, sys.argv[1:], "bench.py"))
