"""What all benches share: how one is started, and the line that says whether a reach is met."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from edge_runtime.program import flags

Config = TypeVar("Config")


def line(what: str, met: bool) -> str:
    """`Reach: WHAT: met`, or MISSED: the form in which `make bench` finds it."""
    return f"Reach: {what}: {'met' if met else 'MISSED'}"


def reach(what: str, met: bool) -> bool:
    """Print the line of one reach; `what` has what was measured and what is to be reached. Returns `met`."""
    print(line(what, met), flush=True)
    return met


def start(config: type[Config], main: Callable[[Config], Any], positional: str = "") -> NoReturn:
    """Run the program `main` with the flags of `config`; an exit code that `main` returns is the program's."""
    name: str = sys.modules["__main__"].__spec__.name  # type: ignore[union-attr]
    prog = name.removesuffix(".__main__").rpartition(".")[2]

    def run(argv: list[str]) -> int:
        return main(flags.parse(config, argv, prog, positional=positional)) or 0

    sys.exit(flags.run_main(run, sys.argv[1:], prog))
