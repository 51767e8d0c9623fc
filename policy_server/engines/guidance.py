"""The numbers of guided real-time chunking (Black et al. 2025, arXiv:2506.07339), as LeRobot computes them.

A new chunk is pulled, row by row, towards what is left of the last one, so that it continues it. `weights` says how
much each row is held, `gains` how hard the flow is pulled at each denoising step; the step graph does the rest.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from edge_runtime.wire.messages import Floats, Guidance, Observation, Policy, Schedule

PLAN, WEIGHTS, MAX_WEIGHT = "plan", "weights", "max_weight"  # in a batch, for a policy that can be guided
MAX_GAIN = 10.0  # LeRobot's `max_guidance_weight`


def gains(steps: int, largest: float = MAX_GAIN) -> Floats:
    """(steps,) from t = 1 down: min((t/τ)·(t² + τ²)/t², largest) with τ = 1 − t; the first is `largest`."""
    t = 1 - np.arange(steps) / steps
    tau = 1 - t
    with np.errstate(divide="ignore"):
        gain = (t / tau) * (t**2 + tau**2) / t**2
    return np.minimum(gain, largest).astype(np.float32)


def weights(schedule: Schedule, delay: int, horizon: int, rows: int) -> Floats:
    """(rows,): 1 for the first `delay`, which will have run before the chunk arrives, then falling to 0 at `horizon`.

    `linear` falls evenly, `exp` faster; `ones` stays at 1 up to the horizon, `zeros` drops behind the delay.
    """
    horizon = min(horizon, rows)
    delay = min(delay, horizon)
    held = np.zeros(rows)
    held[:delay] = 1
    between = np.linspace(1, 0, horizon - delay + 2)[1:-1]
    if schedule == "ones":
        held[delay:horizon] = 1
    elif schedule == "linear":
        held[delay:horizon] = between
    elif schedule == "exp":
        held[delay:horizon] = between * np.expm1(between) / (np.e - 1)
    return held.astype(np.float32)


def of(observation: Observation, guidance: Guidance | None, policy: Policy) -> Mapping[str, Floats]:
    """What guides one observation's chunk, for the batch of a policy that can be guided; weights of 0 for a plain one.

    `plan` (chunk, joints) in joint units, `weights` (chunk,), `max_weight` (). A row of the plan that is not finite has
    weight 0; behind its end the last one is repeated, likewise with weight 0.
    """
    rows = policy.chunk_size
    plan = np.zeros((rows, len(policy.joints)), np.float32)
    held = np.zeros(rows, np.float32)
    given = None if guidance is None or observation.plan is None else observation.plan[:rows]
    if guidance is None or given is None or not len(given):
        return {PLAN: plan, WEIGHTS: held, MAX_WEIGHT: np.array(MAX_GAIN, np.float32)}
    finite: npt.NDArray[np.bool_] = np.asarray(np.isfinite(given).all(axis=1))
    horizon = min(guidance.horizon or len(given), len(given))
    held[: len(given)] = weights(guidance.schedule, observation.delay, horizon, rows)[: len(given)] * finite
    plan[: len(given)] = np.where(finite[:, None], given, 0)
    plan[len(given) :] = plan[len(given) - 1]
    return {PLAN: plan, WEIGHTS: held, MAX_WEIGHT: np.array(guidance.max_weight, np.float32)}
