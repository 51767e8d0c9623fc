"""The engine that runs a SmolVLA bundle: repeatable, in batches, by text, and guided."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from edge_runtime.errors import ModelError
from policy_server import bundle
from policy_server.engines import Engine, open_engine, options
from policy_server.engines.flow import FREE_WIDTHS, FlowEngine
from policy_server.engines.guidance import weights
from policy_server.engines.providers import NAMES, Runtime

pytestmark = pytest.mark.export
Batch = dict[str, Any]
BundleOf = Callable[..., Path]


@pytest.fixture(scope="module")
def engine(bundle_of: Callable[..., Path]) -> Engine:
    return open_engine(bundle.load(bundle_of("smolvla_tiny")), Runtime("cpu", threads=1))


@pytest.fixture
def observation(bundle_of: Callable[..., Path]) -> Batch:
    """One, without noise of its own."""
    pair = bundle.load(bundle_of("smolvla_tiny")).reference()
    return {name: array for name, array in pair.items() if name not in ("action", "noise")}


def batch_of(observation: Batch, seeds: list[list[int]]) -> Batch:
    return {name: np.repeat(array, len(seeds), 0) for name, array in observation.items()} | {"seed": np.array(seeds)}


def test_a_seed_repeats_a_chunk_bit_for_bit(engine: Engine, observation: Batch) -> None:
    first, other, again = (engine.infer(batch_of(observation, [[seed, 7]])) for seed in (3, 4, 3))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_an_earlier_chunk_is_not_overwritten_by_a_later_one(engine: Engine, observation: Batch) -> None:
    first = engine.infer(batch_of(observation, [[1, 0]]))
    kept = first.copy()
    engine.infer(batch_of(observation, [[2, 0]]))
    np.testing.assert_array_equal(first, kept)


def test_a_batch_is_its_members(engine: Engine, observation: Batch) -> None:
    seeds = [[1, 0], [2, 0], [3, 0]]
    together = engine.infer(batch_of(observation, seeds))
    alone = np.concatenate([engine.infer(batch_of(observation, [seed])) for seed in seeds])
    assert together.shape[0] == 3
    np.testing.assert_allclose(together, alone, atol=1e-3)


def test_the_text_matters_and_its_newline_does_not(engine: Engine, observation: Batch) -> None:
    batch = batch_of(observation, [[1, 0]])
    plain, newline, other = (
        engine.infer(batch | {"task": np.array([text])}) for text in ("pick it up", "pick it up\n", "put it down")
    )
    np.testing.assert_array_equal(plain, newline)
    assert not np.array_equal(plain, other)


def test_a_text_beyond_the_limit_is_cut(engine: Engine, observation: Batch) -> None:
    batch = batch_of(observation, [[1, 0]])
    long = "pick up the red cube " * 40
    one, other = (engine.infer(batch | {"task": np.array([text])}) for text in (long, long + "or not"))
    np.testing.assert_array_equal(one, other)


def test_weights_of_zero_guide_nowhere(engine: Engine, observation: Batch) -> None:
    batch = batch_of(observation, [[1, 0]])
    previous = np.ones((1, 50, 6), np.float32)
    plain, guided, pulled = (
        engine.infer(batch | more)
        for more in (
            {},
            {"previous": previous, "weights": np.zeros((1, 50), np.float32)},
            {"previous": previous, "weights": weights("linear", 4, 20, 50)[None]},
        )
    )
    np.testing.assert_array_equal(plain, guided)
    assert np.abs(pulled - plain)[0, :4].max() > 1


def test_warm_up_runs_every_batch_size(engine: Engine) -> None:
    told: list[str] = []
    engine.warm_up([1, 2, 4], told.append)
    assert told == ["batch of 1", "batch of 2", "batch of 4"]


TEXTS = [" ".join(["red"] * words) for words in range(40)]


def test_whatever_the_text_buffers_are_those_of_the_warm_up(bundle_of: BundleOf, observation: Batch) -> None:
    engine = FlowEngine(bundle.load(bundle_of("smolvla_tiny", "--dynamic")), Runtime("cpu", threads=1))
    engine.warm_up([1, 2], lambda progress: None)
    assert sorted(engine._plans) == [(size, width) for size in (1, 2) for width in FREE_WIDTHS]
    kept = dict(engine._plans)
    for text in TEXTS:
        engine.infer(batch_of(observation, [[1, 0]]) | {"task": np.array([text])})
    assert engine._plans == kept


def test_an_engine_that_captures_fills_batches_up_to_a_size_it_was_warmed_for(
    bundle_of: BundleOf, engine: Engine, observation: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FlowEngine, "provider", NAMES["cuda"])
    capturing = FlowEngine(bundle.load(bundle_of("smolvla_tiny")), Runtime("cpu", threads=1, cuda_graphs=True))
    capturing.warm_up([1, 2, 4], lambda progress: None)
    kept = dict(capturing._plans)
    for count in (1, 2, 3, 4):
        batch = batch_of(observation, [[seed, 0] for seed in range(count)])
        actions = capturing.infer(batch)
        assert len(actions) == count
        np.testing.assert_allclose(actions, engine.infer(batch), atol=1e-3)
    assert capturing._plans == kept


@pytest.mark.parametrize("role", ["prefix", "step"])
def test_tensorrt_gets_a_profile_for_each_graph(bundle_of: BundleOf, role: str) -> None:
    graph = bundle.load(bundle_of("smolvla_tiny")).graphs[role]
    inputs = onnxruntime.InferenceSession(str(graph), providers=[NAMES["cpu"]]).get_inputs()
    told = options.tensorrt({}, inputs=inputs, max_batch=8, graphs=False, cache=None)
    least, most = (told[f"trt_profile_{extent}_shapes"].split(",") for extent in ("min", "max"))
    assert len(least) == len(most) == sum("batch" in node.shape for node in inputs)
    assert not set(least) & set(most)


def test_a_graph_of_another_policy_is_refused(bundle_of: Callable[..., Path]) -> None:
    loaded = bundle.load(bundle_of("smolvla_tiny"))
    swapped = bundle.Bundle(
        loaded.path, loaded.policy, {"prefix": loaded.graphs["step"], "step": loaded.graphs["prefix"]}, loaded.manifest
    )
    with pytest.raises(ModelError, match=r"inputs: .* are not"):
        open_engine(swapped, Runtime("cpu"))
