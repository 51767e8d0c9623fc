"""What came of one episode."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Seams:
    """Steps of the plan from tick to tick, in joint units; a seam is where the first row of a new chunk is executed."""

    seams: int = 0
    seam_sum: float = 0.0
    seam_max: float = 0.0
    step_max: float = 0.0  # anywhere


@dataclass(frozen=True)
class Outcome:
    """`aged` actions were executed; `age_s` is their mean age, from the newest observation behind each of them.

    In `slowed` ticks the limit of acceleration kept a goal from its action.
    """

    seed: int
    success: bool
    ticks: int
    starved: int
    starved_after_first_chunk: int
    inferences: int
    skipped: int
    lost: int
    aged: int
    age_s: float
    slowed: int
    plan: Seams
