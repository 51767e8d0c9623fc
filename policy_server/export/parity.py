"""Is the graph the same policy? Torch against ONNX Runtime, on random inputs and on stored ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_runtime.errors import ModelError
from edge_runtime.wire.messages import Floats

Array = npt.NDArray[Any]
Observation = Mapping[str, Array]  # input name -> values, batch first
SINGLES, BATCH = 13, 3
MAX_NORMALISED, MAX_UNITS = 1e-4, 1e-3  # beyond what the order of float32 sums explains, it is another policy


@dataclass(frozen=True)
class Difference:
    """The largest and the mean absolute difference of two sets of actions, in joint units and in the network's."""

    cases: int
    max_abs: float
    mean_abs: float
    max_abs_normalised: float

    @classmethod
    def of(
        cls, expected: Sequence[Floats], actual: Sequence[Floats], scale: npt.NDArray[np.float64] | float = np.inf
    ) -> Difference:
        """Over pairs of (B, chunk, joints) actions in joint units; `scale`, where known, is a normalised unit in them.

        A joint whose scale is 0 never moved in training and has no normalised unit: it is held to `MAX_UNITS`, as all
        are where the scale is not known.

        Raises ModelError when a shape differs or a number is not finite.
        """
        gaps = []
        for one, other in zip(expected, actual, strict=True):
            if one.shape != other.shape:
                raise ModelError(f"the graph answers {list(other.shape)}, expected {list(one.shape)}")
            if not (np.isfinite(one).all() and np.isfinite(other).all()):
                raise ModelError("the actions are not finite; does the network diverge on ordinary input?")
            gaps.append(np.abs(one.astype(np.float64) - other).reshape(-1, one.shape[-1]))
        gap = np.concatenate(gaps)
        unit = np.where((scale == 0) | ~np.isfinite(scale), MAX_UNITS / MAX_NORMALISED, np.abs(scale))
        return cls(len(expected), float(gap.max()), float(gap.mean()), float((gap / unit).max()))

    def require(self, what: str, most: float = MAX_NORMALISED) -> None:
        """Raises ModelError when the difference is more than rounding.

        That is relative: 1e-3 degrees are 4e-5 normalised where a normalised unit is 25 degrees, and 1e-5 where it is
        100, which ten steps of a flow in float32 do not keep to.
        """
        if self.max_abs_normalised > most:
            raise ModelError(
                f"{what}: actions differ by up to {self.max_abs:.2e} joint units "
                f"({self.max_abs_normalised:.2e} normalised); expected at most {most:g} normalised"
            )

    def __str__(self) -> str:
        return f"max {self.max_abs:.2e}, mean {self.mean_abs:.2e} joint units over {self.cases} cases"


def random_observations(draw: Callable[[int], Observation]) -> list[Observation]:
    """Thirteen single observations and one batch of three; zeros would hide errors, so nothing is zero."""
    return [draw(1) for _ in range(SINGLES)] + [draw(BATCH)]


def cases(observation: Observation) -> list[Observation]:
    """A stored batch of n as n single observations, and a batch of three (of the same, if there are fewer)."""
    count = len(next(iter(observation.values())))
    singles = [{name: values[i : i + 1] for name, values in observation.items()} for i in range(count)]
    picks = np.arange(BATCH) % count
    return [*singles, {name: values[picks] for name, values in observation.items()}]
