"""Which cells there are to run."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from scripts.benches.asyncbench.cell import Cell
from scripts.benches.asyncbench.method import Share
from scripts.benches.asyncbench.world import Kind

METHODS = (
    "sequential",
    "latest_only",
    "weighted_average",
    "average",
    "conservative",
    "temporal_ensemble",
    "linear_blend",
    "expected_state",
)
CONSTANT = tuple(f"constant-{ms}" for ms in (0, 100, 300, 500, 800))
LINKS = (*CONSTANT, "lognormal-500", "bursty-800", "stepped-600", "dropouts-300")
WORLDS: tuple[Kind, ...] = ("still", "moved")
ROWS = 50  # a chunk of the shipped policies


def product(
    policy: str,
    *,
    worlds: Sequence[Kind] = WORLDS,
    actions: Sequence[int] = (ROWS,),
    links: Sequence[str] = LINKS,
    methods: Sequence[str] = METHODS,
    thresholds: Sequence[Share] = ("auto",),
) -> list[Cell]:
    """All combinations. Sequential comes once for all thresholds: it has no use for one."""
    return _once(
        Cell(policy, world, count, link, name, "auto" if name == "sequential" else threshold)
        for world, count, link, name, threshold in itertools.product(worlds, actions, links, methods, thresholds)
    )


def default(policy: str) -> list[Cell]:
    """Methods by link, fewer links where the goal moves; fixed thresholds; and chunks of half the length."""
    still = product(policy, worlds=("still",))
    moved = product(policy, worlds=("moved",), links=("constant-100", "constant-300", "constant-800", "lognormal-500"))
    fixed = product(
        policy,
        links=("constant-100", "constant-300", "constant-500"),
        methods=("latest_only", "linear_blend"),
        thresholds=(0.0, 0.5, 0.7, 0.9),
    )
    short = product(
        policy,
        worlds=("still",),
        actions=(ROWS // 2,),
        links=("constant-100", "constant-300"),
        methods=("sequential", "latest_only", "linear_blend"),
    )
    cells = [cell for cell in (*still, *moved, *fixed, *short) if cell.sequential in {*still, *moved, *short}]
    return sorted(_once(cells), key=_order)


def quick(policy: str) -> list[Cell]:
    methods = product(
        policy,
        links=("constant-300", "lognormal-500"),
        methods=("sequential", "latest_only", "weighted_average", "linear_blend"),
    )
    fixed = product(
        policy, worlds=("still",), links=("constant-300",), methods=("linear_blend",), thresholds=(0.0, 0.5, 0.7)
    )
    return sorted(_once([*methods, *fixed]), key=_order)


def reference(policy: str) -> list[Cell]:
    """What was measured with the policies' own code when they were shipped: 40 seeds, in the still world."""
    return product(
        policy,
        worlds=("still",),
        links=CONSTANT,
        methods=("sequential", "wall_clock", "latest_only"),
        thresholds=(0.5,),
    )


GRIDS = {"default": default, "quick": quick, "reference": reference}


def _once(cells: Iterable[Cell]) -> list[Cell]:
    return list(dict.fromkeys(cells))


def _order(cell: Cell) -> tuple[int, int, int, int]:
    """So that cells of the same table stand together, each table in the order of METHODS."""
    return WORLDS.index(cell.world), -cell.actions, LINKS.index(cell.link), METHODS.index(cell.method)
