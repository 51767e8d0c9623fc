"""Each mode against LeRobot's own formula, in double."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from edge_runtime.errors import ModelError
from policy_server.export.normalisation import Affine, Rule, normalise, unnormalise
from policy_server.export.scaling import PixelScaling, Scaling

pytestmark = pytest.mark.export

random = np.random.default_rng(1)
LOW = random.normal(size=4) * 50
WIDTH = np.array([10.0, 0.3, 200.0, 0.0])  # the last joint never moved
STATISTICS = {
    "mean": random.normal(size=4) * 40,
    "std": np.array([20.0, 0.05, 3.0, 0.0]),
    **dict.fromkeys(("min", "q01", "q10"), LOW),
    **dict.fromkeys(("max", "q99", "q90"), LOW + WIDTH),
}
RAW = LOW + random.uniform(-1, 2, (100, 4)) * np.maximum(WIDTH, 1e-9)
NEW, OLD = Rule(), Rule(widen_every_range=True)


def apply(affine: Affine, x: np.ndarray) -> np.ndarray:
    return (x - affine.centre) * affine.scale + affine.offset


def lerobot(x: np.ndarray, mode: str, eps_everywhere: bool) -> np.ndarray:
    if mode == "IDENTITY":
        return x
    if mode == "MEAN_STD":
        return (x - STATISTICS["mean"]) / (STATISTICS["std"] + 1e-8)
    width = WIDTH + 1e-8 if eps_everywhere else np.where(WIDTH == 0, 1e-8, WIDTH)
    return 2 * (x - LOW) / width - 1


@pytest.mark.parametrize("mode", ["IDENTITY", "MEAN_STD", "MIN_MAX", "QUANTILES", "QUANTILE10"])
@pytest.mark.parametrize("rule", [NEW, OLD], ids=["0.4", "0.3"])
def test_normalises_as_lerobot_does(mode: str, rule: Rule) -> None:
    found = apply(normalise("state", mode, STATISTICS, 4, rule), RAW)
    np.testing.assert_allclose(found, lerobot(RAW, mode, rule.widen_every_range), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mode", ["IDENTITY", "MEAN_STD", "MIN_MAX", "QUANTILES", "QUANTILE10"])
def test_the_way_back_undoes_it_up_to_eps(mode: str) -> None:
    moving = WIDTH > 0
    there = apply(normalise("action", mode, STATISTICS, 4, NEW), RAW)
    back = apply(unnormalise("action", mode, STATISTICS, 4, NEW), there)
    np.testing.assert_allclose(back[:, moving], RAW[:, moving], rtol=1e-5)


def test_an_empty_range_comes_back_as_its_release_did() -> None:
    ones = np.ones(4)
    assert apply(unnormalise("action", "MIN_MAX", STATISTICS, 4, NEW), ones)[3] == LOW[3] + 1e-8
    assert apply(unnormalise("action", "MIN_MAX", STATISTICS, 4, OLD), ones)[3] == LOW[3]


def test_a_joint_that_hardly_moved_keeps_its_precision_in_float32() -> None:
    statistics = {"mean": np.array([179.0]), "std": np.array([1e-4])}
    affine = normalise("state", "MEAN_STD", statistics, 1, NEW)
    raw = np.float32([[179.0], [np.nextafter(np.float32(179), np.float32(180))]])
    found = Scaling(affine)(torch.from_numpy(raw)).numpy()
    np.testing.assert_allclose(found, apply(affine, raw.astype(np.float64)), rtol=1e-6)


def test_pixels_are_scaled_colour_by_colour() -> None:
    statistics = {"mean": np.array([0.4, 0.5, 0.6]), "std": np.array([0.1, 0.2, 0.3])}
    frames = random.integers(0, 256, (2, 5, 7, 3), dtype=np.uint8)
    found = PixelScaling(normalise("front", "MEAN_STD", statistics, 3, NEW))(torch.from_numpy(frames)).numpy()
    expected = (frames / 255 - statistics["mean"]) / statistics["std"]
    np.testing.assert_allclose(found, expected.transpose(0, 3, 1, 2), atol=1e-5)


@pytest.mark.parametrize(
    ("mode", "statistics", "message"),
    [
        ("MEAN_STD", {"mean": np.zeros(4)}, "no std"),
        ("MEAN_STD", {"mean": np.zeros(4), "std": np.full(4, np.inf)}, "std is not finite"),
        ("MIN_MAX", {"min": np.zeros(3), "max": np.ones(3)}, "3 numbers, expected 4"),
        ("QUANTILES", {}, "no q01"),
        ("STANDARD", {}, "unknown mode STANDARD"),
    ],
)
def test_what_cannot_be_computed_is_refused(mode: str, statistics: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        normalise("observation.state", mode, statistics, 4, NEW)
