"""One graph from raw observation to a chunk in joint units, scaling inside it: ACT, and any model exported so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from edge_runtime.errors import ModelError
from edge_runtime.wire.messages import Floats
from policy_server.bundle import ACTION, STATE, Bundle, Feature
from policy_server.engines import Batch, check_actions
from policy_server.engines.fixed import FixedBatch
from policy_server.engines.providers import NAMES, Runtime, import_onnxruntime, open_session

_ONNX_TYPES = {"float32": "tensor(float)", "uint8": "tensor(uint8)"}


def open_engine(bundle: Bundle, runtime: Runtime) -> OneGraphEngine:
    return OneGraphEngine(bundle, runtime)


class OneGraphEngine:
    """Runs `policy.onnx`. Inputs are read in place; on the CPU an IO binding gains nothing over that (3 of 64 µs)."""

    def __init__(self, bundle: Bundle, runtime: Runtime) -> None:
        if "policy" not in bundle.graphs:
            raise ModelError(f"{bundle.path / 'manifest.json'}: graphs.policy: is missing")
        self._graph = bundle.graphs["policy"]
        self._policy = bundle.policy
        self._features = bundle.features
        self._chunk = Feature((bundle.policy.chunk_size, len(bundle.policy.joints)), np.dtype(np.float32))
        self._session = open_session(self._graph, runtime, weights=bundle.weights, static=True)
        self._check()
        self._captured = runtime.cuda_graphs and self.provider != NAMES["cpu"]
        self._fixed: list[FixedBatch] = []  # by size, the sizes of the warm-up

    @property
    def provider(self) -> str:
        return str(self._session.get_providers()[0])

    def infer(self, batch: Batch) -> Floats:
        size = len(batch[STATE])
        for fixed in self._fixed:
            if size <= fixed.size:
                return fixed.run(batch)
        actions: Floats = self._session.run([ACTION], {name: batch[name] for name in self._features})[0]
        return actions

    def warm_up(self, batch_sizes: Sequence[int], progress: Callable[[str], None]) -> None:
        """Run once in each batch size. Raises ModelError when the graph fails or gives another shape."""
        for size in batch_sizes:
            progress(f"batch of {size}")
            if self._captured:
                self._fixed.append(self._fix(size))
            batch = {name: np.zeros((size, *feature.shape), feature.dtype) for name, feature in self._features.items()}
            try:
                actions = self.infer(batch)
            except Exception as error:  # onnxruntime's exceptions share no base of their own
                raise ModelError(f"{self._graph}: cannot run a batch of {size}: {error}") from error
            check_actions(str(self._graph), self._policy, size, actions)

    def _fix(self, size: int) -> FixedBatch:
        return FixedBatch(import_onnxruntime(), self._session, size, self._features, (ACTION, self._chunk))

    def _check(self) -> None:
        """Hold the graph's inputs and outputs against the manifest."""
        self._compare("inputs", self._session.get_inputs(), self._features)
        self._compare("outputs", self._session.get_outputs(), {ACTION: self._chunk})

    def _compare(self, what: str, nodes: Sequence[Any], expected: Mapping[str, Feature]) -> None:
        got = {node.name: node for node in nodes}
        if got.keys() != expected.keys():
            raise ModelError(
                f"{self._graph}: {what}: {sorted(got)} are not {sorted(expected)}, which the manifest says"
            )
        for name, feature in expected.items():
            batch, *sizes = got[name].shape or [0]
            if isinstance(batch, int):
                raise ModelError(f"{self._graph}: {name}: the batch size is fixed at {batch}; it has to be free")
            # A size that has a name instead of a number may turn out to be anything: the warm-up looks at that.
            fits = len(sizes) == len(feature.shape) and all(
                have == want or not isinstance(have, int) for have, want in zip(sizes, feature.shape, strict=True)
            )
            if not fits or got[name].type != _ONNX_TYPES[feature.dtype.name]:
                raise ModelError(
                    f"{self._graph}: {name}: {got[name].type} {sizes} is not "
                    f"{_ONNX_TYPES[feature.dtype.name]} {list(feature.shape)}, which the manifest says"
                )
