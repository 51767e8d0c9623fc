"""What was measured so far: JSON lines by cell and seed, so that a bench that was ended goes on where it was."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path

from edge_runtime.errors import OutputError
from scripts.benches.asyncbench.cell import Cell
from scripts.benches.asyncbench.outcome import Outcome, Seams

ROOT = Path(__file__).parents[3]
_DECIDES = (  # what a result depends on, beside the policy
    "cython_ext/exchange.pxi",
    "cython_ext/loop.pxi",
    "cython_ext/port.pxi",
    "cython_ext/ring.pxi",
    "edge_runtime/config.py",
    "edge_runtime/planning/aggregation.py",
    "edge_runtime/planning/sensors.py",
    "edge_runtime/planning/observer.py",
    "edge_runtime/planning/planner.py",
    "edge_runtime/planning/threshold.py",
    "edge_runtime/timing.py",
    "edge_runtime/virtual_arm/episode.py",
    "edge_runtime/virtual_arm/model.py",
    "edge_runtime/virtual_arm/scene.py",
    "policy_server/serving/filter.py",
    *(f"scripts/benches/asyncbench/{name}.py" for name in ("link", "method", "server", "trial", "witness", "world")),
)


def fingerprint() -> str:
    """Of the code that a result depends on: results of other code are measured again."""
    digest = hashlib.sha256()
    for name in _DECIDES:
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()[:12]


class Results:
    """The file `results.jsonl` in `folder`. Raises OutputError where it cannot be written."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "results.jsonl"
        self._code = fingerprint()
        self._found: dict[str, dict[int, Outcome]] = defaultdict(dict)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file.touch()
        except OSError as error:
            raise OutputError(f"output: cannot write {folder}: {error.strerror}") from error
        for line in self._file.read_text().splitlines():
            self._read(line)

    def of(self, cell: Cell) -> dict[int, Outcome]:
        """Seed -> outcome."""
        return self._found[cell.key]

    def add(self, cell: Cell, outcomes: list[Outcome]) -> None:
        with self._file.open("a") as file:
            for outcome in outcomes:
                self._found[cell.key][outcome.seed] = outcome
                file.write(json.dumps({"code": self._code, "cell": cell.key, **asdict(outcome)}) + "\n")

    def _read(self, line: str) -> None:
        try:
            entry = json.loads(line)
        except ValueError:  # the bench was ended while it wrote
            return
        code, cell, plan = entry.pop("code"), entry.pop("cell"), Seams(**entry.pop("plan"))
        if code == self._code:
            self._found[cell][entry["seed"]] = Outcome(**entry, plan=plan)
