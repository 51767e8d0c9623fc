"""A method: how chunks are asked for and how they are merged. What the bench compares."""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from edge_runtime.config import RobotConfig
from edge_runtime.errors import ConfigError
from edge_runtime.planning import aggregation
from edge_runtime.planning.planner import SEQUENTIAL_LEFT, PlannerSettings
from edge_runtime.planning.threshold import part_of
from edge_runtime.wire.messages import Floats, Observation
from scripts.benches.asyncbench.link import FPS

Share = float | Literal["auto", "late"]  # of a chunk; late: auto without its floor
_ARM_LAG = 2  # ticks by which the virtual arm follows its targets


class Method:
    """The product with `aggregate_fn_name`. A subclass says what differs; there is a fresh one in every trial.

    `max_speed` and `max_acceleration` are the guard's, in joint units/s and units/s^2; 0 turns either off.
    """

    aggregate_fn_name = "latest_only"
    max_speed = RobotConfig.max_speed
    max_acceleration = float(RobotConfig.max_acceleration)  # type: ignore[arg-type]  # one for all joints

    def aggregate(self) -> Any:
        """What ActionRing blends with: (keep, take), an object of `_realtime`, or a function of (old, new) rows."""
        return aggregation.resolve(self.aggregate_fn_name)

    def settings(self, actions: int, threshold: Share) -> PlannerSettings:
        """What the product's planner is told, where `actions` of a chunk are asked for."""
        return PlannerSettings(
            fps=FPS,
            actions_per_chunk=actions,
            chunk_size_threshold="auto" if threshold == "late" else threshold,
            auto_floor=0.0 if threshold == "late" else PlannerSettings.auto_floor,
            aggregate_fn_name=self.aggregate(),
            filtered=True,
        )

    def see(self, observation: Observation) -> Observation:
        """What the policy is shown instead of `observation`."""
        return observation

    def receive(self, actions: Floats, observation: Observation, passed: int, executed: int) -> Floats:
        """The rows to merge instead of `actions`, at least one; a row of NaN leaves what is planned.

        Row 0 is for `observation.timestep`; since then that many ticks have passed and rows were executed.
        """
        return actions


class Sequential(Method):
    """Asks when nothing is left, and waits: the arm stands still for every round trip."""

    def settings(self, actions: int, threshold: Share) -> PlannerSettings:
        left = SEQUENTIAL_LEFT if isinstance(threshold, str) else threshold
        return replace(
            super().settings(actions, threshold), mode="sequential", actions_per_chunk=part_of(1 - left, actions)
        )


class WallClock(Method):
    """Row i is for the time of the observation + i periods, whether or not the arm could move meanwhile.

    So the arm jumps into the middle of the first chunk. It is how the reference figures of the shipped policies were
    measured, without a speed limit.
    """

    max_speed = max_acceleration = 0.0

    def receive(self, actions: Floats, observation: Observation, passed: int, executed: int) -> Floats:
        return actions[min(passed - executed, len(actions) - 1) :]


class LatestOnly(Method):
    pass


class WeightedAverage(Method):
    aggregate_fn_name = "weighted_average"


class Average(Method):
    aggregate_fn_name = "average"


class Conservative(Method):
    aggregate_fn_name = "conservative"


class LinearBlend(Method):
    aggregate_fn_name = "linear_blend"


class TemporalEnsemble(Method):
    aggregate_fn_name = "temporal_ensemble"


class ExpectedState(LinearBlend):
    """Shows the policy where the arm will be when its chunk comes, so that row 0 is for that timestep.

    The state is what the last chunk planned for then. The idea is VLASH's (arXiv 2512.01031), which trains for it; here
    the policy is as it is, and everything but the joints is shown as it is now.
    """

    def __init__(self) -> None:
        self._planned: dict[int, Floats] = {}  # by timestep
        self._ahead: dict[int, int] = {}  # by observation: the timesteps until its chunk comes
        self._latencies: list[int] = []  # in ticks

    def see(self, observation: Observation) -> Observation:
        ahead = int(statistics.median(self._latencies)) if self._latencies else 0
        expected = self._planned.get(observation.timestep + ahead - _ARM_LAG) if ahead else None
        self._ahead[observation.id] = 0 if expected is None else ahead
        return observation if expected is None else replace(observation, state=expected)

    def receive(self, actions: Floats, observation: Observation, passed: int, executed: int) -> Floats:
        self._latencies.append(passed)
        ahead = self._ahead.pop(observation.id)
        self._planned = {observation.timestep + ahead + i: row for i, row in enumerate(actions)}
        return np.concatenate([np.full((ahead, actions.shape[1]), np.nan, np.float32), actions])[: len(actions)]


METHODS: Mapping[str, type[Method]] = {
    "sequential": Sequential,
    "latest_only": LatestOnly,
    "weighted_average": WeightedAverage,
    "average": Average,
    "conservative": Conservative,
    "temporal_ensemble": TemporalEnsemble,
    "linear_blend": LinearBlend,
    "expected_state": ExpectedState,
    "wall_clock": WallClock,
}


def resolve(name: str) -> type[Method]:
    """The method called `name`: one of METHODS, or `module:Class` of your own. Raises ConfigError."""
    if name in METHODS:
        return METHODS[name]
    module, colon, kind = name.partition(":")
    if not colon:
        raise ConfigError(f"methods: {name!r} is none of {', '.join(METHODS)}, nor module:Class")
    try:
        found = getattr(importlib.import_module(module), kind)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"methods: cannot load {name!r}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise ConfigError(f"methods: {name!r} is not a subclass of scripts.benches.asyncbench.method.Method")
    return found
