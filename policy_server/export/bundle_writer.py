"""The files of a bundle around its graphs: the stored pair and the manifest."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch

from edge_runtime.wire.messages import Camera, ExtraState
from policy_server import bundle
from policy_server.bundle import FORMAT, IMAGES, STATE, ActionScaling, Manifest
from policy_server.export.checkpoint import Checkpoint
from policy_server.export.policies import Policy
from policy_server.export.request import Request


def manifest_of(
    folder: Path,
    name: str,
    checkpoint: Checkpoint,
    policy: Policy,
    request: Request,
    graphs: Mapping[str, str],
) -> Manifest:
    """The bundle's manifest but for its parity, last of all, since it holds the digests of every file in `folder`."""
    outside = dict(zip(policy.inputs, policy.features, strict=True))
    scaling = action_scaling(checkpoint)
    return Manifest(
        format=FORMAT,
        name=name,
        type=checkpoint.policy_type,
        precision=request.precision,
        joints=request.joints,
        cameras=tuple(
            Camera(key.removeprefix(IMAGES), *checkpoint.frame(feature))
            for key, feature in outside.items()
            if feature.type == "VISUAL"
        ),
        extra_state=tuple(
            ExtraState(key, feature.shape[0])
            for key, feature in outside.items()
            if feature.type != "VISUAL" and key != STATE
        ),
        chunk_size=policy.chunk,
        action_dim=checkpoint.action.shape[0],
        fps=request.fps,
        uses_task=policy.uses_task,
        temporal_ensemble_coeff=checkpoint.config.get("temporal_ensemble_coeff"),
        robot_type=request.robot_type,
        graphs=dict(graphs),
        files=bundle.digests(folder),
        provenance=provenance(checkpoint, request),
        parity={},
        action_scaling=scaling,
        guided=policy.guided and scaling is not None,
        n_obs_steps=policy.observations,
        steps=policy.steps,
        state_text=policy.state_text,
    )


def action_scaling(checkpoint: Checkpoint) -> ActionScaling | None:
    """How the checkpoint's network is unnormalised; None where a joint has no spread, which no plan comes back from."""
    affine = checkpoint.unnormalise()
    if not affine.scale.all():
        return None
    return ActionScaling(affine.scale.tolist(), (affine.offset - affine.centre * affine.scale).tolist())


def provenance(checkpoint: Checkpoint, request: Request) -> dict[str, Any]:
    """Where the bundle comes from; of the checkpoint's place only the folder's own name."""
    return {
        "checkpoint": checkpoint.folder.resolve().name,
        "weights_sha256": checkpoint.weights_sha256,
        "edge_runtime": importlib.metadata.version("edge-runtime"),
        "torch": torch.__version__,
        "onnx": onnx.__version__,
        "onnxruntime": onnxruntime.__version__,
        "opset": request.opset,
        "stated_by_user": dict(request.stated),
    }
