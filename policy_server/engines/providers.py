"""ONNX Runtime sessions: which execution provider was asked for, with which options, and which one was got."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from edge_runtime.errors import ConfigError, EdgeRuntimeError, ModelError

log = logging.getLogger(__name__)

Providers = Literal["auto", "cpu", "cuda", "tensorrt"]
NAMES = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}
# TensorRT is never automatic: it builds an engine for minutes at every first start.
AUTO = ("cuda", "cpu")


@dataclass(frozen=True)
class Runtime:
    """How graphs are run. `threads` of 0 takes ONNX Runtime's own choice, the physical cores."""

    providers: Providers = "auto"
    threads: int = 0


def import_onnxruntime() -> ModuleType:
    """The onnxruntime package, which the robot's side does without. Raises ConfigError."""
    try:
        import onnxruntime
    except ImportError as error:
        raise ConfigError(
            f"onnxruntime is not usable here ({error}): install edge-runtime[server], or [server-gpu] for CUDA"
        ) from error
    return onnxruntime  # type: ignore[no-any-return]


def candidates(wanted: Providers, available: Sequence[str]) -> list[str]:
    """The provider names to try, best first. Raises ConfigError when what is wanted is not built in."""
    if wanted == "auto":
        return [NAMES[name] for name in AUTO if NAMES[name] in available]
    if NAMES[wanted] not in available:
        raise ConfigError(
            f"providers: wanted {NAMES[wanted]}, got an onnxruntime with [{', '.join(available)}] only"
            " (edge-runtime[server-gpu] has CUDA and TensorRT)"
        )
    return [NAMES[wanted]]


def check(runtime: Runtime) -> None:
    """Refuse early what cannot work. Raises ConfigError."""
    candidates(runtime.providers, import_onnxruntime().get_available_providers())


def provider_options(provider: str) -> dict[str, str]:
    """What we set for `provider`. TF32 is off: its 10-bit products cost parity with the exported policy."""
    if provider == NAMES["cuda"]:
        return {"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"}
    return {}


def session_options(ort: ModuleType, runtime: Runtime) -> Any:
    """Options for one graph: threads as asked, and none of them spins while idle."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = runtime.threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    options.log_severity_level = 3  # what matters comes back as an exception
    return options


def open_session(graph: Path, runtime: Runtime) -> Any:
    """An InferenceSession over `graph` that runs on the provider asked for.

    Raises ConfigError when that provider cannot be had (unless `auto`), ModelError when the graph cannot be loaded.
    """
    ort = import_onnxruntime()
    names = candidates(runtime.providers, ort.get_available_providers())
    for name in names:
        try:
            return _create(ort, graph, name, runtime)
        except ConfigError as error:
            if name == names[-1]:
                raise
            log.warning("%s; trying %s", error, names[names.index(name) + 1])
    raise ConfigError(f"providers: this onnxruntime has none of {list(AUTO)}")


def _create(ort: ModuleType, graph: Path, name: str, runtime: Runtime) -> Any:
    on_gpu = name != NAMES["cpu"]
    if on_gpu:
        ort.preload_dlls()  # the CUDA libraries that pip installed
    try:
        session = ort.InferenceSession(
            str(graph),
            session_options(ort, runtime),
            providers=[(name, provider_options(name))],
            enable_fallback=0,
        )
    except Exception as error:  # its exceptions share no base of their own
        raise _translated(error, graph, name if on_gpu else "") from error
    require(name, session.get_providers())
    return session


def require(wanted: str, got: Sequence[str]) -> None:
    """Refuse ONNX Runtime's silent fall-back: it logs a line and runs on the CPU. Raises ConfigError."""
    if not got or got[0] != wanted:
        raise ConfigError(f"providers: wanted {wanted}, got {got[0] if got else 'none'} (see `nvidia-smi`)")


def _translated(error: Exception, graph: Path, provider: str) -> EdgeRuntimeError:
    reason = str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
    if provider:
        return ConfigError(f"providers: wanted {provider}, got an error: {reason}")
    return ModelError(f"{graph}: onnxruntime cannot load it: {reason}")
