"""CUDA and TensorRT where a GPU is: `pytest -m gpu tests/policy_server/gpu`. Never run in CI, which has none."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policy_server import bundle
from policy_server.bundle import Bundle, features
from policy_server.engines import Engine, cache, open_engine
from policy_server.engines.providers import NAMES, Runtime

pytestmark = pytest.mark.gpu

BUNDLES = ("act_so101_pick_place", "act_so101_cubes")
SIZES = (1, 2, 4, 8)


def needs(provider: str) -> None:
    """Skip without what `provider` runs on; a test that asks for a GPU and gets a CPU must not pass."""
    if not cache.device_name(0):
        pytest.skip("no GPU")
    if provider == "tensorrt" and not cache.tensorrt_version():
        pytest.skip("no TensorRT library")


@pytest.fixture(params=BUNDLES)
def loaded(request: pytest.FixtureRequest) -> Bundle:
    return bundle.load(bundle.locate(request.param))


def random_batch(loaded: Bundle, size: int, seed: int) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    return {
        name: draw.uniform(0, 60, (size, *feature.shape)).astype(feature.dtype)
        for name, feature in features(loaded.policy).items()
    }


def assert_same(loaded: Bundle, engine: Engine, reference: Engine, within: float) -> None:
    for seed in range(16):
        batch = random_batch(loaded, (1, 3, 8)[seed % 3], seed)
        np.testing.assert_allclose(engine.infer(batch), reference.infer(batch), atol=within)


@pytest.mark.parametrize("graphs", [False, True], ids=["plain", "captured"])
def test_cuda_says_what_the_cpu_says(loaded: Bundle, graphs: bool) -> None:
    needs("cuda")
    engine = open_engine(loaded, Runtime("cuda", cuda_graphs=graphs))
    engine.warm_up(SIZES, lambda progress: None)
    assert engine.provider == NAMES["cuda"]
    assert_same(loaded, engine, open_engine(loaded, Runtime("cpu")), within=1e-2)


def test_tensorrt_says_what_the_cpu_says_and_starts_from_its_cache(loaded: Bundle, tmp_path: Path) -> None:
    needs("tensorrt")
    took_s = []
    for _ in range(2):
        began_s = time.monotonic()
        engine = open_engine(loaded, Runtime("tensorrt", cache_dir=tmp_path))
        engine.warm_up(SIZES, lambda progress: None)
        took_s.append(time.monotonic() - began_s)
    (folder,) = tmp_path.iterdir()
    assert list(folder.glob("*.engine"))
    assert took_s[1] < took_s[0] / 2
    assert engine.provider == NAMES["tensorrt"]
    assert_same(loaded, engine, open_engine(loaded, Runtime("cpu")), within=0.5)


def test_an_engine_that_serves_is_never_built_anew(loaded: Bundle, tmp_path: Path) -> None:
    needs("tensorrt")
    engine = open_engine(loaded, Runtime("tensorrt", cache_dir=tmp_path))
    engine.warm_up(SIZES, lambda progress: None)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.engine")}
    for size in range(1, 9):
        engine.infer(random_batch(loaded, size, size))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.engine")} == before


def test_an_option_that_cuda_rejects_is_named(loaded: Bundle) -> None:
    needs("cuda")
    with pytest.raises(ValueError, match=r"provider_options: CUDAExecutionProvider says: .*use_tf23"):
        open_engine(loaded, Runtime("auto", options={"cuda": {"use_tf23": True}}))
