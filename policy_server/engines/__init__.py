"""Which engine runs which type of policy: a table name -> module, imported on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol, cast

import numpy.typing as npt

from edge_runtime.errors import ModelError
from edge_runtime.wire.messages import Floats
from policy_server.bundle import Bundle
from policy_server.engines.providers import Runtime

# Each module has `open_engine(bundle, runtime) -> Engine`.
ENGINES = {
    "act": "policy_server.engines.one_graph",
    **dict.fromkeys(("flow", "smolvla", "pi0", "pi05", "diffusion"), "policy_server.engines.flow"),
}
Batch = Mapping[str, npt.NDArray[Any]]


class Engine(Protocol):
    """A policy ready to run. Used by one thread only."""

    @property
    def provider(self) -> str:
        """The execution provider that ONNX Runtime really took."""

    def infer(self, batch: Batch) -> Floats:
        """Feature name -> array, batch first (`bundle.features`; `task` is an array of str) to actions.

        The actions are (batch, chunk, joints) float32 in joint units. Raises whatever goes wrong.
        """

    def warm_up(self, batch_sizes: Sequence[int], progress: Callable[[str], None]) -> None:
        """Run once in every batch size that will be used; `progress` is told what is under way."""


def open_engine(bundle: Bundle, runtime: Runtime) -> Engine:
    """Load the engine for `bundle`. Raises ModelError (bundle), ConfigError (provider, onnxruntime missing).

    What was loaded is what was checked: files that changed in between are noticed afterwards.
    """
    module = ENGINES.get(bundle.policy.type)
    if module is None:
        raise ModelError(f"{bundle.path}: type: {bundle.policy.type!r} is not one of [{', '.join(ENGINES)}]")
    engine = cast(Engine, import_module(module).open_engine(bundle, runtime))
    bundle.recheck()
    return engine
