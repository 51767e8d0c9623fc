"""A line of what is to be reached, and how much effort goes into measuring one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    what: str
    reach: str
    measured: str
    met: bool | None = None  # None: a number to print


@dataclass(frozen=True)
class Effort:
    """How long each measurement lasts, and how often it is repeated."""

    seconds: float
    repeats: int
    most_robots: int
    idle_s: float
    observations: int


FULL = Effort(seconds=8.0, repeats=3, most_robots=1024, idle_s=10.0, observations=200_000)
QUICK = Effort(seconds=2.0, repeats=1, most_robots=32, idle_s=2.0, observations=5_000)


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"
