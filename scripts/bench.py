"""Every bench that has a short version, one after the other, and what each of them found, in one table.

    python -m scripts.bench                           # the short versions, five minutes in all
    python -m scripts.bench --only=[ring,filter]      # these, without a limit of time
    python -m scripts.bench --only=[ring] --full      # the long version

A bench is a file or a folder in `scripts/benches`; it has a short version if it knows `--quick`. What it says of its
reaches is shown, not judged: a time depends on the machine. It fails here when it ends with an error.
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
from scripts.rig.bench import start

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 120
STOP_S = 10.0
OUTCOMES = {0: "ok", 64: "needs more flags", 77: "skipped: this machine lacks what it needs"}
LAST_LINES = 2  # of a bench that says nothing of what is to be reached


@dataclass
class BenchConfig:
    """All figures in one table."""

    only: list[str] = field(default_factory=list)  # names in scripts/benches, without limits; empty = all with --quick
    full: bool = False  # the long versions
    limit_s: float = 100.0  # for each bench, unless `only` names it
    budget_s: float = 300.0  # for all, unless `only` names them; what does not fit is left out


@dataclass(frozen=True)
class Result:
    """How a bench ended, after how long, and its lines that are worth a place in the table."""

    name: str
    outcome: str
    seconds: float
    lines: list[str]

    @property
    def failed(self) -> bool:
        return self.outcome.startswith("exit")


def benches() -> dict[str, bool]:
    """Every bench by name, in alphabetical order: whether it knows `--quick`."""
    room = ROOT / "scripts" / "benches"
    found = {path.stem: path for path in room.glob("[!_]*.py")}
    found |= {path.parent.name: path for path in room.glob("*/__main__.py")}
    return {name: "quick: bool" in path.read_text(encoding="utf-8") for name, path in sorted(found.items())}


def run(name: str, arguments: list[str], limit_s: float | None) -> Result:
    """Run it to its end, or stop it after `limit_s`; what it printed counts either way."""
    began_s = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", f"scripts.benches.{name}", *arguments],
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
    return Result(name, outcome, time.monotonic() - began_s, worth(lines))


def _stop(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Ask the bench and all that it has started to end, then see to it."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        return process.communicate(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()


def worth(lines: list[str]) -> list[str]:
    """What a bench says of what is to be reached; its last words if it says nothing."""
    return [line.strip() for line in lines if "reach" in line.lower()] or [line.strip() for line in lines[-LAST_LINES:]]


def show(result: Result) -> None:
    print(f"{result.name:<22}{result.seconds:>6.0f} s  {result.outcome}")
    for line in result.lines:
        print(textwrap.fill(line, WIDTH, initial_indent="    ", subsequent_indent="      "))
    sys.stdout.flush()


def main(config: BenchConfig) -> None:
    known = benches()
    for name in config.only:
        if name not in known:
            raise UsageError(f"only: {name!r} is not one of {', '.join(known)}")
    chosen = config.only or [name for name, quick in known.items() if quick]
    until_s = None if config.only or config.full else time.monotonic() + config.budget_s
    began_s, failed = time.monotonic(), []
    for number, name in enumerate(chosen, start=1):
        left_s = None if until_s is None else min(config.limit_s, until_s - time.monotonic())
        if sys.stderr.isatty():
            print(f"\r{name} ({number} of {len(chosen)}) \x1b[K", end="", file=sys.stderr, flush=True)
        if left_s is not None and left_s <= 0:
            result = Result(name, "left out: the time is over", 0.0, [])
        else:
            result = run(name, ["--quick"] if known[name] and not config.full else [], left_s)
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        show(result)
        failed += [name] if result.failed else []
    print(f"{len(chosen)} bench{'es' * (len(chosen) != 1)} in {time.monotonic() - began_s:.0f} s")
    if failed:
        raise EdgeRuntimeError(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    start(BenchConfig, main)
