"""AsyncBench: which way of merging action chunks solves the virtual arm's task, how fast and how smoothly.

    python -m scripts.benches.asyncbench                                  # the whole grid
    python -m scripts.benches.asyncbench --quick                          # a minute's worth of it
    python -m scripts.benches.asyncbench --methods=[latest_only,mine:Mine] --links=[constant-300]

Nothing depends on the wall clock: the same seeds give the same tables. What was measured is kept in the folder
`output`, so a bench that was ended goes on. `docs/asyncbench.md` explains methods, columns and evidence.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from edge_runtime.errors import ConfigError
from scripts.benches.asyncbench import grid, link, method, plots, reach
from scripts.benches.asyncbench.cell import Cell
from scripts.benches.asyncbench.evidence import weigh
from scripts.benches.asyncbench.measure import measure
from scripts.benches.asyncbench.results import Results
from scripts.benches.asyncbench.table import Row, to_csv, to_markdown
from scripts.rig.bench import start

SEEDS = {"default": 100, "quick": 20, "reference": 40}


@dataclass
class BenchConfig:
    """Runs a grid of cells. With any of `worlds` to `thresholds` set: all combinations of those instead of a grid."""

    output: Path = Path("out/asyncbench")  # folder for results.jsonl, table.md, table.csv and plots
    policy: Literal["state", "images"] = "state"
    grid: Literal["default", "quick", "reference"] = "default"
    quick: bool = False  # --grid=quick
    seeds: int | None = None  # episodes of each cell; by default 100, of quick 20, of reference 40
    first_seed: int = 0
    worlds: list[Literal["still", "moved"]] = field(default_factory=list)
    actions: list[int] = field(default_factory=list)  # rows of a chunk asked for
    links: list[str] = field(default_factory=list)  # process-ms: constant, lognormal, bursty, stepped, dropouts
    methods: list[str] = field(default_factory=list)  # names, or module:Class
    thresholds: list[float | Literal["auto", "late"]] = field(default_factory=list)
    processes: int | None = None  # by default one for each processor
    debug: bool = False

    def __post_init__(self) -> None:
        if self.seeds is not None and self.seeds < 1:
            raise ConfigError(f"seeds: {self.seeds} is less than 1")
        if self.processes is not None and self.processes < 1:
            raise ConfigError(f"processes: {self.processes} is less than 1")
        if self.first_seed < 0:
            raise ConfigError(f"first_seed: {self.first_seed} is negative")
        if not all(1 <= count <= grid.ROWS for count in self.actions):
            raise ConfigError(f"actions: {self.actions} are not in 1..{grid.ROWS}")
        if not all(isinstance(share, str) or 0 <= share < 1 for share in self.thresholds):
            raise ConfigError(f"thresholds: {self.thresholds} are neither auto, late nor in 0..1")
        for name in self.links:
            link.round_trips(name, 0, 1)
        for name in self.methods:
            method.resolve(name)

    @property
    def chosen(self) -> Literal["default", "quick", "reference"]:
        return "quick" if self.quick else self.grid

    def cells(self) -> list[Cell]:
        axes = {name: getattr(self, name) for name in ("worlds", "actions", "links", "methods", "thresholds")}
        axes = {name: values for name, values in axes.items() if values}
        return grid.product(self.policy, **axes) if axes else grid.GRIDS[self.chosen](self.policy)


def main(config: BenchConfig) -> None:
    cells, results = config.cells(), Results(config.output)
    seeds = range(config.first_seed, config.first_seed + (config.seeds or SEEDS[config.chosen]))
    measure(cells, seeds, results, config.processes or os.cpu_count() or 1, _tell)
    rows = _rows(cells, seeds, results)
    (config.output / "table.csv").write_text(to_csv(rows))
    text = "\n".join([to_markdown(rows), *reach.lines(rows), ""])
    (config.output / "table.md").write_text(text)
    plots.levels(cells, config.first_seed, config.output / "levels.png")
    plots.against_latency(rows, config.output / "latency.png")
    plots.methods(rows, config.output / "methods.png")
    print(text, end="")


def _rows(cells: list[Cell], seeds: range, results: Results) -> list[Row]:
    found = {cell: {seed: results.of(cell)[seed] for seed in seeds} for cell in cells}
    return [Row(cell, weigh(found[cell], found.get(cell.sequential, {}))) for cell in cells]


def _tell(done: int, of_all: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{done} of {of_all} episodes", end="\n" if done == of_all else "", file=sys.stderr, flush=True)


if __name__ == "__main__":
    start(BenchConfig, main)
