"""A graph run at fixed addresses: a captured CUDA graph reads and writes the same memory each time."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from policy_server.bundle import Feature
from policy_server.engines.options import DEVICE

Arrays = Mapping[str, npt.NDArray[Any]]


class FixedBatch:
    """Inputs and one output of a batch of `size`, where `session` runs; the first run captures, the others replay."""

    def __init__(
        self,
        ort: ModuleType,
        session: Any,
        size: int,
        inputs: Mapping[str, Feature],
        output: tuple[str, Feature],
    ) -> None:
        device = device_of(session)
        self.size = size
        self._session = session
        self._binding = session.io_binding()
        self._inputs = {
            name: ort.OrtValue.ortvalue_from_numpy(np.zeros((size, *feature.shape), feature.dtype), *device)
            for name, feature in inputs.items()
        }
        for name, value in self._inputs.items():
            self._binding.bind_ortvalue_input(name, value)
        name, feature = output
        self._output = ort.OrtValue.ortvalue_from_numpy(np.zeros((size, *feature.shape), feature.dtype), *device)
        self._binding.bind_ortvalue_output(name, self._output)
        self._options = run_options(ort, size)

    def run(self, batch: Arrays) -> npt.NDArray[Any]:
        """The output for a `batch` of `size` or fewer; missing members are copies of the last."""
        have = len(next(iter(batch.values())))
        full = filled(batch, self.size)
        for name, value in self._inputs.items():
            value.update_inplace(np.ascontiguousarray(full[name]))
        self._session.run_with_iobinding(self._binding, self._options)
        return np.array(self._output.numpy()[:have])  # a copy: the memory is written again


def filled(batch: Arrays, size: int) -> Arrays:
    """`batch` with copies of its last member behind it, up to `size`."""
    missing = size - len(next(iter(batch.values())))
    if not missing:
        return batch
    return {name: np.concatenate([array, np.repeat(array[-1:], missing, axis=0)]) for name, array in batch.items()}


def device_of(session: Any) -> tuple[str, int]:
    """ONNX Runtime's name and number of the device whose memory `session` works in."""
    provider = session.get_providers()[0]
    if provider == "CPUExecutionProvider":
        return "cpu", 0
    return "cuda", int(session.get_provider_options()[provider][DEVICE])


def run_options(ort: ModuleType, graph: int) -> Any:
    """Options for a run that captures, or replays, its session's CUDA graph number `graph`, from 1."""
    options = ort.RunOptions()
    options.add_run_config_entry("gpu_graph_id", str(graph))
    return options
