"""A cell of the grid: one policy in one world, with one method on one link."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace

from scripts.benches.asyncbench.method import Share
from scripts.benches.asyncbench.world import Kind


@dataclass(frozen=True)
class Cell:
    """`actions` rows of each chunk are asked for when the queue holds at most `threshold` of them."""

    policy: str
    world: Kind
    actions: int
    link: str
    method: str
    threshold: Share

    @property
    def key(self) -> str:
        return "/".join(f"{value:g}" if isinstance(value, float) else str(value) for value in astuple(self))

    @property
    def sequential(self) -> Cell:
        """The cell to compare with."""
        return replace(self, method="sequential", threshold="auto")

    def with_method(self, method: str) -> Cell:
        return replace(self, method=method)
