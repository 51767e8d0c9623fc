"""What the seeds of a cell say together, with their uncertainty, and beside another cell on the same seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from edge_runtime.tools.demo.comparison import mcnemar
from scripts.benches.asyncbench.link import FPS
from scripts.benches.asyncbench.outcome import Outcome


@dataclass(frozen=True)
class Evidence:
    """Of one cell. Times in s, steps in joint units; `low` and `high`: 95 % of success; NaN where nothing was seen.

    `p_value` and `speed_up`: against sequential on the same link, over the seeds of both; NaN where that was not run.
    """

    seeds: int
    solved: int
    low: float
    high: float
    p_value: float  # of a difference in success: exact McNemar test, two-sided
    time_s: float  # mean of those solved
    speed_up: float  # of the mean time, over the seeds that both solved
    speed_up_moving: float  # the same without the wait for the first chunk, which both have to bear
    starved: float  # ticks in an episode after its first chunk, mean
    seam_mean: float
    seam_max: float
    step_max: float
    age_s: float
    inferences: float
    slowed: float  # ticks in which the limit of acceleration acted, of all


def weigh(outcomes: Mapping[int, Outcome], sequential: Mapping[int, Outcome]) -> Evidence:
    """Raises statistics.StatisticsError without any outcome."""
    found = [outcomes[seed] for seed in sorted(outcomes)]
    solved = [outcome for outcome in found if outcome.success]
    low, high = wilson(len(solved), len(found))
    return Evidence(
        seeds=len(found),
        solved=len(solved),
        low=low,
        high=high,
        p_value=_p_value(outcomes, sequential),
        time_s=_mean([outcome.ticks / FPS for outcome in solved]),
        speed_up=_speed_up(outcomes, sequential, lambda outcome: outcome.ticks),
        speed_up_moving=_speed_up(outcomes, sequential, _ticks_moving),
        starved=statistics.fmean(outcome.starved_after_first_chunk for outcome in found),
        seam_mean=_ratio(sum(o.plan.seam_sum for o in found), sum(o.plan.seams for o in found)),
        seam_max=max(outcome.plan.seam_max for outcome in found),
        step_max=max(outcome.plan.step_max for outcome in found),
        age_s=_ratio(sum(o.age_s * o.aged for o in found), sum(o.aged for o in found)),
        inferences=statistics.fmean(outcome.inferences for outcome in found),
        slowed=_ratio(sum(o.slowed for o in found), sum(o.ticks for o in found)),
    )


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """The interval of 95 % for a proportion (Wilson 1927)."""
    z = statistics.NormalDist().inv_cdf(0.975)
    share = successes / trials
    middle = share + z**2 / (2 * trials)
    reach = z * math.sqrt(share * (1 - share) / trials + z**2 / (4 * trials**2))
    return (middle - reach) / (1 + z**2 / trials), (middle + reach) / (1 + z**2 / trials)


def _p_value(outcomes: Mapping[int, Outcome], sequential: Mapping[int, Outcome]) -> float:
    both = outcomes.keys() & sequential.keys()
    if not both:
        return math.nan
    lost = sum(sequential[seed].success and not outcomes[seed].success for seed in both)
    won = sum(outcomes[seed].success and not sequential[seed].success for seed in both)
    return min(1.0, 2 * min(mcnemar(lost, won), mcnemar(won, lost)))


def _speed_up(
    outcomes: Mapping[int, Outcome], sequential: Mapping[int, Outcome], ticks: Callable[[Outcome], int]
) -> float:
    both = [s for s in outcomes.keys() & sequential.keys() if outcomes[s].success and sequential[s].success]
    return _ratio(sum(ticks(sequential[seed]) for seed in both), sum(ticks(outcomes[seed]) for seed in both))


def _ticks_moving(outcome: Outcome) -> int:
    return outcome.ticks - (outcome.starved - outcome.starved_after_first_chunk)


def _mean(values: list[float]) -> float:
    return statistics.fmean(values) if values else math.nan


def _ratio(above: float, below: float) -> float:
    return above / below if below else math.nan
