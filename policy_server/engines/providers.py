"""ONNX Runtime sessions: which execution provider was asked for, with which options, and which one was got."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from edge_runtime.errors import ConfigError, EdgeRuntimeError, ModelError
from edge_runtime.program import extras
from policy_server.engines import cache, options
from policy_server.engines.options import DEVICE, Option, Options

log = logging.getLogger(__name__)

Providers = Literal["auto", "cpu", "cuda", "tensorrt"]
NAMES = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}
# TensorRT is never automatic: it builds an engine for minutes at every first start.
AUTO = ("cuda", "cpu")
PRODUCTS = ("Conv", "Gemm", "MatMul", "Attention")  # in an operator's name: nearly all the time goes there
CONFIGURABLE = ("cuda", "tensorrt")  # the CPU's takes options and ignores them, whatever they say


@dataclass(frozen=True)
class Runtime:
    """How graphs are run. `threads` of 0 takes ONNX Runtime's own choice, the physical cores.

    `options` are the user's, by provider. Batches have at most `max_batch` members; engines that are built are kept
    below `cache_dir`; with `cuda_graphs` what has a static shape is captured once and replayed.
    """

    providers: Providers = "auto"
    threads: int = 0
    options: Mapping[str, Mapping[str, Option]] = field(default_factory=dict)
    max_batch: int = 8
    cache_dir: Path = cache.DEFAULT
    cuda_graphs: bool = False

    @property
    def device(self) -> int:
        """The number of the GPU; `options.check` has seen to it that the providers agree."""
        return int(next((told[DEVICE] for told in self.options.values() if DEVICE in told), 0))


def import_onnxruntime() -> ModuleType:
    """The onnxruntime package, which the robot's side does without. Raises ConfigError."""
    try:
        import onnxruntime
    except ImportError as error:
        raise ConfigError(
            f"onnxruntime is not usable here ({error}): {extras.install('server')}, or [server-gpu] for CUDA"
        ) from error
    return onnxruntime  # type: ignore[no-any-return]


def candidates(wanted: Providers, available: Sequence[str]) -> list[str]:
    """The provider names to try, best first. Raises ConfigError when what is wanted is not built in."""
    if wanted == "auto":
        return [NAMES[name] for name in AUTO if NAMES[name] in available]
    if NAMES[wanted] not in available:
        raise ConfigError(
            f"providers: wanted {NAMES[wanted]}, got an onnxruntime with [{', '.join(available)}] only"
            f" ({extras.install('server-gpu')} has CUDA and TensorRT)"
        )
    return [NAMES[wanted]]


def check(runtime: Runtime) -> None:
    """Refuse early what cannot work. Raises ConfigError."""
    candidates(runtime.providers, import_onnxruntime().get_available_providers())


def wants_accelerator(providers: Providers) -> bool:
    """Whether something else than the CPU would be tried first. Raises ConfigError for a provider that is not here."""
    return candidates(providers, import_onnxruntime().get_available_providers())[0] != NAMES["cpu"]


def session_options(ort: ModuleType, runtime: Runtime) -> Any:
    """Options for one graph: threads as asked, and none of them spins while idle."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = runtime.threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    options.log_severity_level = 3  # what matters comes back as an exception, or is asked for
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")  # for `placement`
    return options


def open_session(graph: Path, runtime: Runtime, *, weights: str = "", static: bool = False) -> Any:
    """An InferenceSession over `graph` that runs on the provider asked for.

    `weights` is a digest of all that is in it, for what is built from it and kept; `static`: it will be run at fixed
    addresses (`fixed.FixedBatch`), so that it may be captured.

    Raises ConfigError when that provider cannot be had (unless `auto`) or rejects an option, ModelError when the graph
    cannot be loaded.
    """
    ort = import_onnxruntime()
    names = candidates(runtime.providers, ort.get_available_providers())
    for name in names:
        try:
            return _create(ort, graph, name, runtime, weights, static)
        except RejectedOption:
            raise
        except ConfigError as error:
            if name == names[-1]:
                raise
            log.warning("%s; trying %s", error, names[names.index(name) + 1])
    raise ConfigError(f"providers: this onnxruntime has none of {list(AUTO)}")


class RejectedOption(ConfigError):
    """A provider does not take one of `provider_options`."""


def _create(ort: ModuleType, graph: Path, name: str, runtime: Runtime, weights: str, static: bool) -> Any:
    on_gpu = name != NAMES["cpu"]
    if on_gpu:
        ort.preload_dlls()  # the CUDA libraries that pip installed
    providers = _providers(ort, graph, name, runtime, weights, static)
    try:
        session = ort.InferenceSession(
            str(graph), session_options(ort, runtime), providers=providers, enable_fallback=0
        )
    except Exception as error:  # its exceptions share no base of their own
        raise _translated(error, graph, name if on_gpu else "") from error
    wanted = [each for each, _ in providers]
    require(wanted, session.get_providers())
    if on_gpu:
        require_placed(graph, wanted, placement(session))
    return session


def _providers(
    ort: ModuleType, graph: Path, name: str, runtime: Runtime, weights: str, static: bool
) -> list[tuple[str, Options]]:
    """What is asked for, with options. What TensorRT cannot run goes to CUDA, not to the CPU."""
    if name == NAMES["cpu"]:
        return [(name, {})]
    graphs = runtime.cuda_graphs and static
    cuda, tensorrt = ({DEVICE: runtime.device, **runtime.options.get(name, {})} for name in CONFIGURABLE)
    if name == NAMES["cuda"]:
        return [(name, options.cuda(cuda, graphs=graphs))]
    told = options.tensorrt(
        tensorrt,
        inputs=_inputs(ort, graph),
        max_batch=runtime.max_batch,
        graphs=graphs,
        cache=cache.folder(runtime.cache_dir, ort, weights, runtime.device),
    )
    return [(name, told), (NAMES["cuda"], options.cuda(cuda, graphs=False))]


def _inputs(ort: ModuleType, graph: Path) -> Sequence[Any]:
    """The graph's inputs, before anything is built for them."""
    unoptimised = ort.SessionOptions()
    unoptimised.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    unoptimised.log_severity_level = 3
    try:
        inputs: Sequence[Any] = ort.InferenceSession(str(graph), unoptimised, [NAMES["cpu"]]).get_inputs()
    except Exception as error:  # its exceptions share no base of their own
        raise _translated(error, graph, "") from error
    return inputs


def require(wanted: Sequence[str], got: Sequence[str]) -> None:
    """Refuse ONNX Runtime's silent fall-back: it logs a line and runs on the CPU. Raises ConfigError."""
    if list(got[: len(wanted)]) != list(wanted):
        raise ConfigError(f"providers: wanted {', '.join(wanted)}, got {', '.join(got) or 'none'} (see `nvidia-smi`)")


def placement(session: Any) -> Mapping[str, Counter[str]]:
    """Provider -> how many nodes of each operator it runs; empty before onnxruntime 1.24, which cannot tell."""
    placed: dict[str, Counter[str]] = defaultdict(Counter)
    if hasattr(session, "get_provider_graph_assignment_info"):
        for part in session.get_provider_graph_assignment_info():
            placed[part.ep_name].update(node.op_type for node in part.get_nodes())
    return placed


def require_placed(graph: Path, wanted: Sequence[str], placed: Mapping[str, Counter[str]]) -> None:
    """Refuse the fall-back by node: what has no kernel on the GPU goes to the CPU, and nothing is said.

    What a shape is computed from belongs there; products do not. Raises ConfigError.
    """
    if not placed:
        return
    counts = ", ".join(f"{name} {operators.total()}" for name, operators in placed.items())
    if not placed.get(wanted[0]):
        raise ConfigError(f"providers: wanted {wanted[0]}, got no node of {graph.name} on it ({counts})")
    astray = [
        f"{count} {operator}"
        for operator, count in placed.get(NAMES["cpu"], Counter[str]()).items()
        if any(product in operator for product in PRODUCTS)
    ]
    if astray:
        raise ConfigError(
            f"providers: wanted {wanted[0]}, got {', '.join(astray)} of {graph.name} on the CPU ({counts})"
        )
    log.info("%s: nodes by provider: %s", graph.name, counts)


def _translated(error: Exception, graph: Path, provider: str) -> EdgeRuntimeError:
    reason = str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
    if provider and "provider option" in reason.lower():
        return RejectedOption(f"provider_options: {provider} says: {reason}")
    if provider:
        return ConfigError(f"providers: wanted {provider}, got an error: {reason}")
    return ModelError(f"{graph}: onnxruntime cannot load it: {reason}")
