"""A torch module as an ONNX file, without anything that betrays where it was made."""

from __future__ import annotations

import contextlib
import inspect
import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from edge_runtime.errors import ModelError
from policy_server.engines.options import BATCH

Axes = Mapping[int, str]  # dimension -> the name of what varies along it
OPSETS = range(18, 24)  # 18 is what torch's exporter writes; it converts upwards
MAX_INLINE_BYTES = 1_900_000_000  # protobuf ends at 2 GB; above, the weights go beside the graph
MIN_HALVED = 1024  # smaller tensors are not worth a node


def round_weights(module: nn.Module) -> None:
    """Round every matrix and kernel of `module` to what float16 can hold. Raises ModelError on one beyond its range."""
    for name, parameter in module.named_parameters():
        if parameter.dim() > 1:
            rounded = parameter.half().float()
            if not torch.isfinite(rounded).all():
                raise ModelError(f"--precision=fp16: {name} has weights beyond 65504; export it with fp32")
            parameter.data = rounded


@dataclass(frozen=True)
class GraphOptions:
    """`halve`: store as float16 the weights that `round_weights` prepared; `dynamic`: not only the batch is free."""

    opset: int = OPSETS[0]
    halve: bool = False
    dynamic: bool = False


def export_graph(
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    outputs: Sequence[str],
    path: Path,
    options: GraphOptions,
    free: Mapping[str, Axes] | None = None,
) -> None:
    """Write `module` to `path`, checked; `inputs` are examples of its arguments, in order.

    The first dimension of every input is the batch and stays free, or what `free` says of it, where all that is not
    the batch stays free only if `options.dynamic`. Examples have a batch of 2: torch would take a 1 for a constant.
    Raises ModelError when torch or ONNX refuse, OSError when the file cannot be written.
    """
    shapes = tuple(
        {
            axis: torch.export.Dim(name, min=1)
            for axis, name in (free or {}).get(key, {0: BATCH}).items()
            if name == BATCH or options.dynamic
        }
        for key in inputs
    )
    variadic = any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(module.forward).parameters.values())
    try:
        with quiet():
            program = torch.onnx.export(
                module,
                tuple(inputs.values()),
                input_names=list(inputs),
                output_names=list(outputs),
                opset_version=options.opset,
                dynamo=True,
                dynamic_shapes=(shapes,) if variadic else shapes,  # all of *args are one argument to torch
                verbose=False,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        raise ModelError(f"{path.name}: torch {torch.__version__} could not export it: {error}") from error
    assert program is not None
    model = program.model_proto
    strip(model)
    if options.halve:
        store_halves(model)
    large = sum(4 * math.prod(tensor.dims) for tensor in model.graph.initializer) > MAX_INLINE_BYTES
    onnx.save_model(model, str(path), save_as_external_data=large, location=f"{path.name}.data")
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ModelError(f"{path.name}: the ONNX checker refuses it: {error}") from error


def strip(model: onnx.ModelProto) -> None:
    """Drop the stack traces that torch leaves in every node: half a megabyte of paths on the exporting machine."""
    for item in (
        *model.graph.node,
        *model.graph.value_info,
        *model.graph.input,
        *model.graph.output,
        model.graph,
        model,
    ):
        del item.metadata_props[:]
        item.doc_string = ""
    for function in model.functions:
        for node in function.node:
            del node.metadata_props[:]


def store_halves(model: onnx.ModelProto) -> None:
    """Every initializer that float16 leaves unchanged is stored so, and cast back; a runtime folds the Cast at load."""
    casts = []
    for tensor in model.graph.initializer:
        if tensor.data_type != TensorProto.FLOAT or math.prod(tensor.dims) < MIN_HALVED:
            continue
        values = numpy_helper.to_array(tensor)
        with np.errstate(over="ignore"):
            halves = values.astype(np.float16)
        if not np.array_equal(halves.astype(np.float32), values):
            continue
        name = tensor.name
        tensor.CopyFrom(numpy_helper.from_array(halves, f"{name}.fp16"))
        casts.append(helper.make_node("Cast", [f"{name}.fp16"], [name], name=f"{name}.cast", to=TensorProto.FLOAT))
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Torch's exporter without its remarks on torchvision, on names of dimensions and on its own deprecations."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*will not be used, since it shares", category=UserWarning)
            warnings.filterwarnings("ignore", message=".*isinstance.treespec, LeafSpec", category=FutureWarning)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
