"""Tiny bundles whose answer is known: row t of the chunk is state + t/8 + the mean of each frame + bias.

Of several observations the state is the newest + 10 times the one before + 100 times the one before that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

JOINTS = ("shoulder.pos", "elbow.pos", "gripper.pos")


def write_bundle(
    folder: Path,
    *,
    name: str = "tiny",
    cameras: Iterable[tuple[str, int, int]] = (),
    extra: int = 0,
    chunk: int = 4,
    bias: float = 0.0,
    fixed_batch: int | None = None,
    observations: int = 1,
    names: Sequence[str] = JOINTS,
    **manifest: Any,
) -> Path:
    """A bundle in `folder`; further keywords replace entries of its manifest."""
    folder.mkdir(parents=True)
    batch = fixed_batch or "batch"
    rows = (np.arange(chunk, dtype=np.float32) / 8 + bias).reshape(1, chunk, 1)
    shape = [batch, *([observations] if observations > 1 else []), len(names)]
    inputs = [helper.make_tensor_value_info("observation.state", TensorProto.FLOAT, shape)]
    powers = 10.0 ** np.arange(observations, dtype=np.float32)[::-1, None]
    constants = [
        numpy_helper.from_array(rows, "rows"),
        numpy_helper.from_array(np.array([1]), "axis"),
        numpy_helper.from_array(powers, "powers"),
    ]
    several = [
        helper.make_node("Mul", ["observation.state", "powers"], ["weighted"]),
        helper.make_node("ReduceSum", ["weighted", "axis"], ["state"]),
    ]
    nodes = [
        *(several if observations > 1 else [helper.make_node("Unsqueeze", ["observation.state", "axis"], ["state"])]),
        helper.make_node("Add", ["state", "rows"], ["sum0"]),
    ]
    means = []
    for camera, height, width in cameras:
        feature = f"observation.images.{camera}"
        inputs.append(helper.make_tensor_value_info(feature, TensorProto.UINT8, [batch, height, width, 3]))
        nodes.append(helper.make_node("Cast", [feature], [f"{camera}.float"], to=TensorProto.FLOAT))
        nodes.append(helper.make_node("ReduceMean", [f"{camera}.float"], [f"{camera}.mean"], axes=[1, 2, 3]))
        means.append(f"{camera}.mean")
    if extra:
        feature = "observation.environment_state"
        inputs.append(helper.make_tensor_value_info(feature, TensorProto.FLOAT, [batch, extra]))
        nodes.append(helper.make_node("ReduceMean", [feature], ["extra.mean"], axes=[1]))
        means.append("extra.mean")
    constants.append(numpy_helper.from_array(np.array([-1, 1, 1]), "column"))
    for index, mean in enumerate(means):
        nodes.append(helper.make_node("Reshape", [mean, "column"], [f"{mean}.column"]))
        nodes.append(helper.make_node("Add", [f"sum{index}", f"{mean}.column"], [f"sum{index + 1}"]))
    nodes.append(helper.make_node("Identity", [f"sum{len(means)}"], ["action"]))
    output = helper.make_tensor_value_info("action", TensorProto.FLOAT, [batch, chunk, len(names)])
    graph = helper.make_graph(nodes, "tiny", inputs, [output], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "policy.onnx")
    write_manifest(
        folder,
        {
            "format": 2,
            "name": name,
            "type": "act",
            "precision": "fp32",
            "joints": [{"name": joint, "unit": "degrees"} for joint in names],
            "cameras": [{"name": camera, "height": height, "width": width} for camera, height, width in cameras],
            "extra_state": [{"name": "observation.environment_state", "dimension": extra}] if extra else [],
            "chunk_size": chunk,
            "action_dim": len(names),
            "fps": 30.0,
            "uses_task": False,
            "temporal_ensemble_coeff": None,
            "robot_type": None,
            "graphs": {"policy": "policy.onnx"},
            "provenance": {},
            "parity": {},
            **({"n_obs_steps": observations} if observations > 1 else {}),
        }
        | manifest,
    )
    return folder


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """`manifest` with the digests of the files that are there."""
    files = {}
    for file in sorted(folder.iterdir()):
        if file.name != "manifest.json":
            data = file.read_bytes()
            files[file.name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    (folder / "manifest.json").write_text(json.dumps({"files": files} | manifest))
