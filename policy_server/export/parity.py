"""Is the graph the same policy? Torch against ONNX Runtime, on random inputs and on stored ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as OnnxError

from edge_runtime.errors import ModelError

Array = npt.NDArray[np.generic]
Observation = Mapping[str, Array]  # input name -> values, batch first
Floats = npt.NDArray[np.float32]
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
    def of(cls, expected: Sequence[Floats], actual: Sequence[Floats], scale: npt.NDArray[np.float64]) -> Difference:
        """Over pairs of (B, chunk, joints) actions in joint units; `scale` is joint units per normalised unit.

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
        return cls(len(expected), float(gap.max()), float(gap.mean()), float((gap / np.abs(scale)).max()))

    def require(self, what: str, max_units: float = MAX_UNITS, max_normalised: float = MAX_NORMALISED) -> None:
        """Raises ModelError when the difference is more than rounding."""
        if self.max_abs > max_units or self.max_abs_normalised > max_normalised:
            raise ModelError(
                f"{what}: actions differ by up to {self.max_abs:.2e} joint units "
                f"({self.max_abs_normalised:.2e} normalised); expected at most {max_units:g} ({max_normalised:g})"
            )

    def __str__(self) -> str:
        return f"max {self.max_abs:.2e}, mean {self.mean_abs:.2e} joint units over {self.cases} cases"


def random_observations(draw: Callable[[int], Observation]) -> list[Observation]:
    """Thirteen single observations and one batch of three; zeros would hide errors, so nothing is zero."""
    return [draw(1) for _ in range(SINGLES)] + [draw(BATCH)]


def rows(observation: Observation) -> list[Observation]:
    """A stored batch of n as n single observations and a batch of three (rows repeated if it has fewer)."""
    count = len(next(iter(observation.values())))
    singles = [{name: values[i : i + 1] for name, values in observation.items()} for i in range(count)]
    picks = np.arange(BATCH) % count
    return [*singles, {name: values[picks] for name, values in observation.items()}]


def open_graph(path: Path) -> Callable[[Observation], Floats]:
    """The graph in `path` on the CPU, as a function from inputs to its first output. Raises ModelError on a bad file."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except (OnnxError.Fail, OnnxError.InvalidGraph, OnnxError.InvalidProtobuf, OnnxError.NotImplemented) as error:
        raise ModelError(f"{path.name}: ONNX Runtime {onnxruntime.__version__} cannot load it: {error}") from error

    def run(observation: Observation) -> Floats:
        actions: Floats = session.run(None, dict(observation))[0]
        return actions

    return run
