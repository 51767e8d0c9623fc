"""The least time a graph can take: its bytes over the device's bandwidth, its operations over the device's rate.

Both rates are measured here and now, with the same provider: a sum of two arrays, and a product of two matrices.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

from policy_server.engines.fixed import device_of
from policy_server.engines.providers import Runtime, import_onnxruntime, open_session

FLOAT = 4  # bytes


@dataclass(frozen=True)
class Rates:
    """What the device does at most: bytes and operations (a multiplication and an addition are two) per second."""

    bytes_per_s: float
    flops_per_s: float


@dataclass(frozen=True)
class Work:
    """What one inference needs at least: every weight, input and output touched once, every product computed once."""

    bytes: float
    flops: float


def rates(runtime: Runtime, *, floats: int, side: int) -> Rates:
    """From adding two arrays of `floats` numbers, and multiplying two matrices of `side` x `side`."""
    copied_s = _time(runtime, "Add", (floats,))
    multiplied_s = _time(runtime, "MatMul", (side, side))
    return Rates(3 * FLOAT * floats / copied_s, 2 * side**3 / multiplied_s)


def work(graph: Path, batch: int) -> Work:
    """Of a graph whose batch dimension is free."""
    model = onnx.load(graph)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch
    inferred = shape_inference.infer_shapes(model, data_prop=True).graph
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*inferred.input, *inferred.output, *inferred.value_info)
    }
    shapes |= {weight.name: list(weight.dims) for weight in inferred.initializer}
    weights = sum(numpy_helper.to_array(weight).nbytes for weight in inferred.initializer)
    inputs = sum(math.prod(shapes[value.name]) * _size(value) for value in (*inferred.input, *inferred.output))
    return Work(weights + inputs, sum(_flops(node, shapes) for node in inferred.node))


def _size(value: onnx.ValueInfoProto) -> int:
    return 1 if value.type.tensor_type.elem_type == TensorProto.UINT8 else FLOAT


def _flops(node: onnx.NodeProto, shapes: dict[str, list[int]]) -> int:
    """Of what there are products in; the rest is small beside it."""
    if node.op_type in ("MatMul", "Gemm"):
        first, result = shapes[node.input[0]], shapes[node.output[0]]
        transposed = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
        return 2 * math.prod(result) * first[0 if transposed else -1]
    if node.op_type == "Conv":
        _, *kernel = shapes[node.input[1]]  # of one output channel
        return 2 * math.prod(shapes[node.output[0]]) * math.prod(kernel)
    return 0


def _time(runtime: Runtime, operator: str, shape: Sequence[int]) -> float:
    """The shortest of some runs of `operator` on two arrays that are already on the device."""
    ort = import_onnxruntime()
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(operator, ["a", "b"], ["c"])],
        operator,
        [value("a", TensorProto.FLOAT, shape), value("b", TensorProto.FLOAT, shape)],
        [value("c", TensorProto.FLOAT, shape)],
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "probe.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        session = open_session(path, runtime)
    binding: Any = session.io_binding()
    arrays = [ort.OrtValue.ortvalue_from_numpy(np.ones(shape, np.float32), *device_of(session)) for _ in range(3)]
    binding.bind_ortvalue_input("a", arrays[0])
    binding.bind_ortvalue_input("b", arrays[1])
    binding.bind_ortvalue_output("c", arrays[2])
    times = []
    for _ in range(20):
        began_s = time.perf_counter()
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()  # a run may return before the device is done
        times.append(time.perf_counter() - began_s)
    return min(times)
