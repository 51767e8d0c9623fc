"""Every bench that has a short version, one after the other, and what each of them found, in one table.

    python -m scripts.bench --quick
    python -m scripts.bench --only=[ring,filter]

A bench takes part by knowing `--quick`. What it says of what is to be reached is shown, not judged: a time depends on
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

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 120
STOP_S = 10.0
OUTCOMES = {0: "ok", 2: "needs more than --quick", 64: "needs more than --quick"}  # argparse's usage error, and ours
LAST_LINES = 2  # of a script that says nothing of what is to be reached


@dataclass
class BenchConfig:
    """All figures in one table."""

    quick: bool = False  # the short versions, five minutes in all
    only: list[str] = field(default_factory=list)  # names in scripts/benches; empty = all
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
    room = ROOT / "scripts" / "benches"
    found = {path.stem: path for path in room.glob("[!_]*.py")}
    found |= {path.parent.name: path for path in room.glob("*/__main__.py")}
    return sorted(name for name, path in found.items() if "quick" in path.read_text(encoding="utf-8"))


def run(script: str, arguments: list[str], limit_s: float | None) -> Result:
    """Run it to its end, or stop it after `limit_s`; what it printed counts either way."""
    began_s = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", f"scripts.benches.{script}", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
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
    config = flags.parse(BenchConfig, argv, prog="bench")
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
    sys.exit(flags.run_main(main, sys.argv[1:], "bench"))
