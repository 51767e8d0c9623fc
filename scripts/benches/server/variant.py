"""A bundle that takes and gives the same as another, and answers otherwise or later: what one is compared with."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edge_runtime.errors import ConfigError

WIDTH = 256  # of a layer that is added


def write(bundle: Path, folder: Path, *, shift: float = 0.0, layers: int = 0) -> Path:
    """A copy of `bundle` in `folder` whose actions are greater by `shift` joint units, and take `layers` longer.

    A layer is a product with a square matrix of zeros, so that what it gives adds nothing.
    """
    shutil.copytree(bundle, folder)
    graph = folder / "policy.onnx"
    model = onnx.load(graph)
    last = next((node for node in model.graph.node if "action" in node.output), None)
    if last is None:
        raise ConfigError(f"{graph}: no node gives `action`")
    last.output[list(last.output).index("action")] = "action_before"
    joints = len(json.loads((folder / "manifest.json").read_text())["joints"])
    shapes = {"enter": (joints, WIDTH), "stay": (WIDTH, WIDTH), "leave": (WIDTH, joints)}
    values = {f"layer_{name}": np.zeros(shape, np.float32) for name, shape in shapes.items()}
    values["action_shift"] = np.array(shift, np.float32)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in values.items())
    weights = ["layer_enter", *["layer_stay"] * layers, "layer_leave"]
    names = ["action_before", *(f"layer_{number}" for number in range(len(weights)))]
    for before, weight, after in zip(names, weights, names[1:], strict=False):
        model.graph.node.append(helper.make_node("MatMul", [before, weight], [after]))
    model.graph.node.append(helper.make_node("Sum", ["action_before", names[-1], "action_shift"], ["action"]))
    onnx.save(model, graph)
    manifest = json.loads((folder / "manifest.json").read_text())
    data = graph.read_bytes()
    manifest["files"]["policy.onnx"] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder
