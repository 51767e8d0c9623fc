"""Which engine runs which type of policy: a table of names, and what installed packages add to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Protocol

import numpy.typing as npt

from edge_runtime.errors import EdgeRuntimeError, ModelError
from edge_runtime.program.schema import nearest
from edge_runtime.wire.messages import Floats, Policy
from policy_server.bundle import MANIFEST, Bundle
from policy_server.engines.providers import Runtime

GROUP = "policy_server.engines"  # the entry point of a package that brings an engine: TYPE = module:function
ENGINES = {  # type -> a function (bundle, runtime) -> Engine, loaded when it is used
    "act": "policy_server.engines.one_graph:open_engine",
    "graph": "policy_server.engines.one_graph:open_engine",
    **dict.fromkeys(("flow", "smolvla", "pi0", "pi05", "diffusion"), "policy_server.engines.flow:open_engine"),
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


class Made(Protocol):
    """A policy that is no bundle, such as one written in Python. `path` is where it comes from, for messages."""

    path: str
    policy: Policy
    n_obs_steps: int
    batched: bool  # whether it gains by several observations at once

    def open(self, runtime: Runtime) -> Engine:
        """Make it ready to run. Raises ModelError, ConfigError."""


Source = Bundle | Made  # what can be offered


def open_engine(source: Source, runtime: Runtime) -> Engine:
    """Load the engine for `source`. Raises ModelError (bundle), ConfigError (provider, onnxruntime missing).

    What was loaded of a bundle is what was checked: files that changed in between are noticed afterwards.
    """
    if not isinstance(source, Bundle):
        return source.open(runtime)
    engine = _opener(source)(source, runtime)
    source.recheck()
    return engine


def _opener(bundle: Bundle) -> Callable[[Bundle, Runtime], Engine]:
    """By name alone: a bundle is somebody's file, and no file may say which code is run."""
    kind = bundle.policy.type
    if kind in ENGINES:
        module, _, function = ENGINES[kind].partition(":")
        found: Callable[[Bundle, Runtime], Engine] = getattr(import_module(module), function)
        return found
    installed = {point.name: point for point in entry_points(group=GROUP)}
    if kind not in installed:
        known = [*ENGINES, *installed]
        near = nearest(kind, known)
        meant = f"; did you mean {near}?" if near else ""
        raise ModelError(f"{bundle.path / MANIFEST}: type: {kind!r} is not one of [{', '.join(known)}]{meant}")
    try:
        found = installed[kind].load()
    except EdgeRuntimeError:
        raise
    except Exception as error:  # whatever somebody else's package raises when it is imported
        raise ModelError(f"{bundle.path / MANIFEST}: type: {kind!r} cannot be loaded: {error}") from error
    return found


def check_actions(where: str, policy: Policy, size: int, actions: Any) -> None:
    """Raises ModelError unless `actions` are what a batch of `size` is answered with."""
    expected = (size, policy.chunk_size, len(policy.joints))
    if getattr(actions, "shape", None) != expected:
        raise ModelError(f"{where}: action: {getattr(actions, 'shape', type(actions).__name__)} is not {expected}")
