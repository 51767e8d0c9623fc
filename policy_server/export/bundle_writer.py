"""The files of a bundle around its graphs: the stored pair and the manifest."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch

from edge_runtime.wire.messages import Joint
from policy_server.export.checkpoint import IMAGES, STATE, Checkpoint
from policy_server.export.parity import Floats, Observation

FORMAT = 1
MANIFEST, REFERENCE = "manifest.json", "reference.npz"


def write_reference(folder: Path, observation: Observation, actions: Floats) -> None:
    """The pair that `export-onnx --check` and the server's start repeat: inputs by name, and `action`."""
    np.savez_compressed(folder / REFERENCE, action=actions, **observation)


def write_manifest(
    folder: Path,
    checkpoint: Checkpoint,
    *,
    name: str,
    joints: Sequence[Joint],
    fps: float,
    graphs: Mapping[str, str],
    precision: str,
    robot_type: str | None,
    parity: Mapping[str, Any],
    opset: int,
    stated: Mapping[str, Any],
) -> None:
    """`manifest.json`, last of all, since it holds the digests of every other file in `folder`."""
    outside = {checkpoint.outside(feature): feature for feature in checkpoint.inputs}
    manifest = {
        "format": FORMAT,
        "name": name,
        "type": checkpoint.type,
        "precision": precision,
        "joints": [asdict(joint) for joint in joints],
        "cameras": [
            {"name": key.removeprefix(IMAGES), "height": feature.shape[1], "width": feature.shape[2]}
            for key, feature in outside.items()
            if feature.type == "VISUAL"
        ],
        "extra_state": [
            {"name": key, "dimension": feature.shape[0]}
            for key, feature in outside.items()
            if feature.type != "VISUAL" and key != STATE
        ],
        "chunk_size": checkpoint.setting("chunk_size", int),
        "action_dim": checkpoint.action.shape[0],
        "fps": fps,
        "uses_task": False,
        "temporal_ensemble_coeff": checkpoint.config.get("temporal_ensemble_coeff"),
        "robot_type": robot_type,
        "graphs": dict(graphs),
        "files": {path.name: file_entry(path) for path in sorted(folder.iterdir())},
        "provenance": provenance(checkpoint, opset, stated),
        "parity": dict(parity),
    }
    text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def file_entry(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "bytes": path.stat().st_size}


def provenance(checkpoint: Checkpoint, opset: int, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Where the bundle comes from; of the checkpoint's place only the folder's own name."""
    return {
        "checkpoint": checkpoint.folder.resolve().name,
        "weights_sha256": checkpoint.weights_sha256,
        "edge_runtime": importlib.metadata.version("edge-runtime"),
        "torch": torch.__version__,
        "onnx": onnx.__version__,
        "onnxruntime": onnxruntime.__version__,
        "opset": opset,
        "stated_by_user": dict(stated),
    }
