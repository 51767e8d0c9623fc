"""What each execution provider is told: our choices, then the user's, which win."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from edge_runtime.errors import ConfigError
from edge_runtime.program.schema import hint

BATCH = "batch"  # what every graph calls its one free extent
DEVICE = "device_id"
Option = bool | int | float | str
Options = dict[str, str]


def check(given: Mapping[str, Mapping[str, Option]], known: Iterable[str]) -> None:
    """Raises ConfigError for an unknown provider or one that takes no options, and for a device that does not exist."""
    for provider, told in given.items():
        if provider not in known:
            raise ConfigError(f"provider_options.{provider}: takes no options; {hint(provider, known)}")
        device = told.get(DEVICE, 0)
        if isinstance(device, bool) or not isinstance(device, int) or device < 0:
            raise ConfigError(f"provider_options.{provider}.{DEVICE}: {device!r} is not the number of a GPU, 0 or more")
    devices = {str(told[DEVICE]) for told in given.values() if DEVICE in told}
    if len(devices) > 1:
        raise ConfigError(f"provider_options: {DEVICE}: {' and '.join(sorted(devices))}; a policy runs on one GPU")


def cuda(given: Mapping[str, Option], *, graphs: bool) -> Options:
    """TF32 is off: its 10-bit products cost parity with the exported policy. `graphs` captures each binding."""
    ours = {"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"}
    if graphs:
        ours["enable_cuda_graph"] = "1"
    return ours | as_text(given)


def tensorrt(
    given: Mapping[str, Option], *, inputs: Iterable[Any], max_batch: int, graphs: bool, cache: Path | None
) -> Options:
    """A profile over the batch sizes that will come, so that none is ever built while serving, and the caches.

    `inputs` are the graph's, as ONNX Runtime describes them. Raises ConfigError for what has no profile.
    """
    ours: Options = {}
    shapes = {node.name: node.shape for node in inputs if not all(isinstance(size, int) for size in node.shape)}
    if shapes:
        for extent, batch in (("min", 1), ("opt", max_batch), ("max", max_batch)):
            ours[f"trt_profile_{extent}_shapes"] = ",".join(
                f"{name}:{_with_batch(name, shape, batch)}" for name, shape in shapes.items()
            )
    if cache is not None:
        ours |= {
            "trt_engine_cache_enable": "1",
            "trt_engine_cache_path": str(cache),
            "trt_timing_cache_enable": "1",
            "trt_timing_cache_path": str(cache),
        }
    if graphs:
        if max_batch != 1:  # it captures one graph, and would replay it for every other size
            raise ConfigError(f"cuda_graphs: TensorRT has them for one shape only; max_batch is {max_batch}, not 1")
        ours["trt_cuda_graph_enable"] = "1"
    told = ours | as_text(given)
    if told.get("trt_fp16_enable") == "1":
        told.setdefault("trt_layer_norm_fp32_fallback", "1")  # its squares overflow half precision
    return told


def as_text(given: Mapping[str, Option]) -> Options:
    """Options as ONNX Runtime reads them: true is 1."""
    return {name: str(int(value)) if isinstance(value, bool) else str(value) for name, value in given.items()}


def _with_batch(name: str, shape: list[Any], batch: int) -> str:
    sizes = [batch if extent == BATCH else extent for extent in shape]  # of SmolVLA's keys it is the second
    if not all(isinstance(size, int) for size in sizes):
        raise ConfigError(f"providers: tensorrt needs fixed shapes, and {name} is {shape} (export without --dynamic)")
    return "x".join(map(str, sizes))
