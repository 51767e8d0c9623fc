"""The numbers of guided real-time chunking, against LeRobot's formulas written out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edge_runtime.wire.messages import Schedule
from policy_server.engines.guidance import gains, weights


def test_gains_follow_the_formula_and_stop_at_the_largest() -> None:
    found = gains(10, largest=5.0)
    assert found[0] == 5.0  # at t = 1 it would be infinite
    for step in range(1, 10):
        t = 1 - step / 10
        tau = 1 - t
        assert found[step] == pytest.approx(min((t / tau) * (t**2 + tau**2) / t**2, 5.0))
    assert found.dtype == np.float32


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("zeros", [1, 1, 0, 0, 0, 0, 0, 0]),
        ("ones", [1, 1, 1, 1, 1, 0, 0, 0]),
        ("linear", [1, 1, 3 / 4, 2 / 4, 1 / 4, 0, 0, 0]),
        ("exp", [1, 1, *(x * math.expm1(x) / (math.e - 1) for x in (3 / 4, 2 / 4, 1 / 4)), 0, 0, 0]),
    ],
)
def test_weights_of_a_delay_of_2_and_a_horizon_of_5(schedule: Schedule, expected: list[float]) -> None:
    np.testing.assert_allclose(weights(schedule, 2, 5, 8), expected, rtol=1e-6)


@pytest.mark.parametrize("schedule", ["zeros", "ones", "linear", "exp"])
@pytest.mark.parametrize(("delay", "horizon"), [(0, 0), (5, 3), (8, 8), (20, 20), (0, 20)])
def test_weights_stay_between_0_and_1_and_never_rise(schedule: Schedule, delay: int, horizon: int) -> None:
    found = weights(schedule, delay, horizon, 8)
    assert found.shape == (8,)
    assert found.min() >= 0
    assert found.max() <= 1
    assert (np.diff(found) <= 0).all()
    assert (found[min(horizon, 8) :] == 0).all()
