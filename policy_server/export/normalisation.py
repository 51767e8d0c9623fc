"""LeRobot's normalisation modes, each as arithmetic that one graph node or two can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edge_runtime.errors import ModelError

Doubles = npt.NDArray[np.float64]
Statistics = Mapping[str, Mapping[str, Doubles]]  # feature -> name of the statistic -> numbers
RANGES = {"MIN_MAX": ("min", "max"), "QUANTILES": ("q01", "q99"), "QUANTILE10": ("q10", "q90")}


@dataclass(frozen=True)
class Affine:
    """`(x - centre) * scale + offset`, (n,) each: per joint, or per colour for images.

    Subtracting first keeps float32 exact where a joint hardly moved: its mean is large beside its std.
    """

    centre: Doubles
    scale: Doubles
    offset: Doubles

    @classmethod
    def identity(cls, size: int) -> Affine:
        return cls(np.zeros(size), np.ones(size), np.zeros(size))

    def for_pixels(self) -> Affine:
        """The same for 0..255 instead of 0..1."""
        return Affine(self.centre * 255, self.scale / 255, self.offset)


@dataclass(frozen=True)
class Rule:
    """How a checkpoint's LeRobot treats ranges: up to 0.3 `eps` is added to all, later only empty ones become `eps`."""

    eps: float = 1e-8
    widen_every_range: bool = False


def normalise(feature: str, mode: str, statistics: Mapping[str, Doubles], size: int, rule: Rule) -> Affine:
    """What takes raw values of `feature`, `size` numbers, to what the network was trained on.

    The formulas of LeRobot 0.4's `normalize_processor.py` and 0.3's `normalize.py`. Raises ModelError when the mode is
    unknown, or its statistics are missing, not finite or of another size.
    """
    if mode == "IDENTITY":
        return Affine.identity(size)
    if mode == "MEAN_STD":
        mean, std = (statistic(feature, mode, statistics, name, size) for name in ("mean", "std"))
        return Affine(mean, 1 / (std + rule.eps), np.zeros(size))
    low, width = span(feature, mode, statistics, size)
    width = width + rule.eps if rule.widen_every_range else np.where(width == 0, rule.eps, width)
    return Affine(low, 2 / width, -np.ones(size))


def unnormalise(feature: str, mode: str, statistics: Mapping[str, Doubles], size: int, rule: Rule) -> Affine:
    """The way back, in which LeRobot leaves out `eps` but for empty ranges from 0.4 on. Raises as `normalise` does."""
    if mode == "IDENTITY":
        return Affine.identity(size)
    if mode == "MEAN_STD":
        mean, std = (statistic(feature, mode, statistics, name, size) for name in ("mean", "std"))
        return Affine(np.zeros(size), std, mean)
    low, width = span(feature, mode, statistics, size)
    if not rule.widen_every_range:
        width = np.where(width == 0, rule.eps, width)
    return Affine(-np.ones(size), width / 2, low)


def span(feature: str, mode: str, statistics: Mapping[str, Doubles], size: int) -> tuple[Doubles, Doubles]:
    """The low end and the width of the range that becomes [-1, 1]."""
    if mode not in RANGES:
        expected = ", ".join(("IDENTITY", "MEAN_STD", *RANGES))
        raise ModelError(f"normalization_mapping: {feature} has the unknown mode {mode}; expected one of {expected}")
    low, high = (statistic(feature, mode, statistics, name, size) for name in RANGES[mode])
    return low, high - low


def statistic(feature: str, mode: str, statistics: Mapping[str, Doubles], name: str, size: int) -> Doubles:
    """The (size,) numbers called `name`, checked."""
    if name not in statistics:
        raise ModelError(
            f"{feature}: its mode is {mode}, but there is no {name} for it in the checkpoint; give --stats FILE"
        )
    values = np.asarray(statistics[name], dtype=np.float64).reshape(-1)
    if values.size != size:
        raise ModelError(f"{feature}: its {name} has {values.size} numbers, expected {size}")
    if not np.isfinite(values).all():
        raise ModelError(f"{feature}: its {name} is not finite, so training never filled it in; give --stats FILE")
    return values
