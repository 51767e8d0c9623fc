"""What the floor of `chunk_size_threshold: auto` buys and costs: AsyncBench with it and without, on the same seeds.

    python -m scripts.benches.floor             # 100 seeds
    python -m scripts.benches.floor --quick     # 20

Without the floor `auto` asks as late as is safe. `docs/threshold.md` has what came out.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from edge_runtime.errors import ConfigError
from scripts.benches.asyncbench.cell import Cell
from scripts.benches.asyncbench.evidence import Evidence, weigh
from scripts.benches.asyncbench.grid import ROWS
from scripts.benches.asyncbench.measure import measure
from scripts.benches.asyncbench.method import Share
from scripts.benches.asyncbench.results import Results
from scripts.benches.asyncbench.world import Kind
from scripts.rig.bench import reach, start

SOLVED, INFERENCES = 0.82, 1.3
WORLDS: tuple[Kind, ...] = ("still", "moved")


@dataclass
class FloorConfig:
    """`auto` with its floor and without."""

    seeds: int = 100
    first_seed: int = 0
    output: Path | None = None  # folder that keeps what was measured; by default nothing is kept
    processes: int | None = None  # by default one for each processor
    quick: bool = False  # 20 seeds, 100 ms alone

    def __post_init__(self) -> None:
        self.seeds = 20 if self.quick else self.seeds
        if self.seeds < 1:
            raise ConfigError(f"seeds: {self.seeds} is less than 1")


def main(config: FloorConfig) -> None:
    cells = [
        Cell("state", world, ROWS, f"constant-{ms}", "linear_blend", threshold)
        for world in WORLDS
        for ms in ((100,) if config.quick else (100, 300))
        for threshold in ("late", "auto")
    ]
    seeds = range(config.first_seed, config.first_seed + config.seeds)
    with tempfile.TemporaryDirectory(prefix="bench-floor-") as work:
        results = Results(config.output or Path(work))
        measure(cells, seeds, results, config.processes or os.cpu_count() or 1, lambda *_: None)
        seen = {cell: {seed: results.of(cell)[seed] for seed in seeds} for cell in cells}

    def evidence(world: Kind, ms: int, threshold: Share) -> Evidence:
        """Against the same without the floor."""
        late, cell = (Cell("state", world, ROWS, f"constant-{ms}", "linear_blend", t) for t in ("late", threshold))
        return weigh(seen[cell], seen[late])

    columns = ("solved", "p", "time s", "age s", "inferences", "starved")
    print(f"{'world':<7}{'ms':>5}  {'auto':<13}{''.join(f'{name:>11}' for name in columns)}")
    for cell in cells:
        ms = int(cell.link.partition("-")[2])
        each = evidence(cell.world, ms, cell.threshold)
        print(
            f"{cell.world:<7}{ms:>5}  {'without floor' if cell.threshold == 'late' else 'with floor':<13}"
            f"{f'{each.solved}/{each.seeds}':>11}{each.p_value:>11.3f}{each.time_s:>11.2f}{each.age_s:>11.2f}"
            f"{each.inferences:>11.2f}{each.starved:>11.2f}"
        )
    judge({(world, t): evidence(world, 100, t) for world in WORLDS for t in ("late", "auto")})


def judge(at_100_ms: dict[tuple[Kind, Share], Evidence]) -> None:
    """Print the line of each reach."""
    late, auto = at_100_ms["moved", "late"], at_100_ms["moved", "auto"]
    reach(
        f"goal that moves, 100 ms: {auto.solved} of {auto.seeds} solved with the floor, {late.solved} without, "
        f"p = {auto.p_value:.3f} (reach {SOLVED:.0%})",
        auto.solved >= SOLVED * auto.seeds,
    )
    late, auto = at_100_ms["still", "late"], at_100_ms["still", "auto"]
    reach(
        f"still goal, 100 ms: {auto.solved} of {auto.seeds} solved with the floor (reach {late.solved}, without)",
        auto.solved >= late.solved,
    )
    more = max(at_100_ms[world, "auto"].inferences / at_100_ms[world, "late"].inferences for world in WORLDS)
    reach(f"inferences with the floor: {more:.2f} times those without (reach {INFERENCES})", more <= INFERENCES)
    starved = {t: sum(at_100_ms[world, t].starved for world in WORLDS) for t in ("late", "auto")}
    reach(
        f"starved ticks an episode: {starved['auto']:.2f} with the floor (reach {starved['late']:.2f}, without)",
        starved["auto"] <= starved["late"],
    )


if __name__ == "__main__":
    start(FloorConfig, main)
