"""A torch module as an ONNX file, without anything that betrays where it was made."""

from __future__ import annotations

import contextlib
import inspect
import logging
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn

from edge_runtime.errors import ModelError
from policy_server.engines.options import BATCH

Axes = Mapping[int, str]  # dimension -> the name of what varies along it
OPSETS = range(18, 24)  # 18 is what torch's exporter writes; it converts upwards
MAX_INLINE_BYTES = 1_900_000_000  # protobuf ends at 2 GB; above, the weights go beside the graph
MIN_HALVED = 1024  # smaller tensors are not worth a node
ALIGNMENT = 4096  # of weights beside the graph, so that a runtime can map them


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
    whole = path.with_name(f"{path.name}.whole")
    program.save(whole, external_data=True)  # from torch's memory to the disk, never twice in memory
    del program
    model = onnx.load(str(whole), load_external_data=False)
    strip(model)
    store_weights(model, whole.with_name(f"{whole.name}.data"), path, options.halve)
    onnx.save_model(model, str(path))
    for file in whole.parent.glob(f"{whole.name}*"):
        file.unlink()
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


def store_weights(model: onnx.ModelProto, source: Path, path: Path, halve: bool) -> None:
    """Move the weights of `model` from `source` into the graph, or beside it where they are too large for protobuf.

    With `halve` those that float16 leaves unchanged are stored so, and cast back; a runtime folds the Cast at load.
    Weights are read one by one: a policy's may fill the memory.
    """
    kept = [tensor for tensor in model.graph.initializer if tensor.data_location == TensorProto.EXTERNAL]
    large = sum(4 * math.prod(tensor.dims) for tensor in kept) > MAX_INLINE_BYTES
    casts = []
    with contextlib.ExitStack() as stack:
        reading = stack.enter_context(source.open("rb")) if kept else None
        beside = stack.enter_context((path.parent / f"{path.name}.data").open("wb")) if large else None
        for tensor in kept:
            assert reading is not None
            told = {entry.key: entry.value for entry in tensor.external_data}
            reading.seek(int(told.get("offset", 0)))
            data = reading.read(int(told["length"]))
            if halve and tensor.data_type == TensorProto.FLOAT and (half := halved(data)) is not None:
                data, name = half, tensor.name
                tensor.name, tensor.data_type = f"{name}.fp16", TensorProto.FLOAT16
                casts.append(helper.make_node("Cast", [tensor.name], [name], name=f"{name}.cast", to=TensorProto.FLOAT))
            del tensor.external_data[:]
            if beside is None:
                tensor.data_location, tensor.raw_data = TensorProto.DEFAULT, data
                continue
            beside.seek(-beside.tell() % ALIGNMENT, os.SEEK_CUR)
            for key, value in (("location", f"{path.name}.data"), ("offset", beside.tell()), ("length", len(data))):
                tensor.external_data.add(key=key, value=str(value))
            beside.write(data)
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def halved(data: bytes) -> bytes | None:
    """Float32 numbers as float16, or None where that would change one, or where there are few of them."""
    values = np.frombuffer(data, np.dtype("<f4"))
    with np.errstate(over="ignore"):
        halves = values.astype("<f2")
    return halves.tobytes() if len(values) >= MIN_HALVED and np.array_equal(halves.astype("<f4"), values) else None


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
