"""What a part of the doctor found, and what it returned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from edge_runtime.tools.doctor.finding import Finding


class Findings:
    """Runs `steps` to their end."""

    def __init__(self, steps: Iterator[Finding]) -> None:
        self.all: list[Finding] = []
        self.result: Any = None
        while True:
            try:
                self.all.append(next(steps))
            except StopIteration as end:
                self.result = end.value
                return

    def about(self, name: str) -> Finding:
        (finding,) = [each for each in self.all if each.about == name]
        return finding

    def states(self) -> dict[str, str]:
        return {each.about: each.state for each in self.all}
