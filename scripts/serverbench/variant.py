"""A bundle that takes and gives the same as another, and answers otherwise: what one is replaced by."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edge_runtime.errors import ConfigError


def write(bundle: Path, folder: Path, shift: float) -> Path:
    """A copy of `bundle` in `folder` whose actions are greater by `shift` joint units."""
    shutil.copytree(bundle, folder)
    graph = folder / "policy.onnx"
    model = onnx.load(graph)
    last = next((node for node in model.graph.node if "action" in node.output), None)
    if last is None:
        raise ConfigError(f"{graph}: no node gives `action`")
    last.output[list(last.output).index("action")] = "action_before"
    model.graph.node.append(helper.make_node("Add", ["action_before", "action_shift"], ["action"]))
    model.graph.initializer.append(numpy_helper.from_array(np.array(shift, np.float32), "action_shift"))
    onnx.save(model, graph)
    manifest = json.loads((folder / "manifest.json").read_text())
    data = graph.read_bytes()
    manifest["files"]["policy.onnx"] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder
