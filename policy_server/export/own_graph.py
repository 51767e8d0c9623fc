"""A bundle of ONNX graphs that the user brings: from raw observation to chunk, or prefix and step. Needs no torch."""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from edge_runtime.errors import ConfigError, ModelError
from edge_runtime.wire.messages import Camera, ExtraState
from policy_server import bundle
from policy_server.bundle import ACTION, FORMAT, IMAGES, STATE, Manifest
from policy_server.engines import Engine, open_engine
from policy_server.engines.providers import Runtime
from policy_server.export.folder import new_folder, refuse_existing
from policy_server.export.parity import Array, Difference, Observation, cases
from policy_server.export.progress import Progress
from policy_server.export.request import Request

SEED = 20240613
STORED = 2  # rows of the stored pair
MOST_BYTES = 1_800_000_000  # of a graph in one file: protobuf ends at 2 GiB
NOISE, STEP = "noise", {"x", "step"}
_FLOAT, _UINT8 = onnx.TensorProto.FLOAT, onnx.TensorProto.UINT8


def export(graph: Path, output: Path, request: Request, say: Progress, prefix: Path | None, steps: int) -> None:
    """Make the bundle `output` of `graph`, or of a flow's `prefix` (if any) and step.

    Raises ModelError when a graph cannot be served, ConfigError when what the user stated does not fit it, OutputError
    when the bundle cannot be written.
    """
    refuse_existing(output)
    graphs = {"policy": graph}
    models = {"policy": _read(graph)}
    if prefix is not None or {each.name for each in models["policy"].graph.input} >= STEP:
        graphs = {"prefix": prefix, "step": graph} if prefix is not None else {"step": graph}
        models = {role: _read(path) for role, path in graphs.items()}
    inputs: dict[str, onnx.ValueInfoProto] = {}
    for model in reversed(models.values()):
        inputs |= {each.name: each for each in model.graph.input}
    chunk = _chunk(graph, models["step" if "step" in models else "policy"])
    manifest = _manifest(output.name, graph, inputs, chunk, request, steps if "step" in models else 0)
    say(f"{graph.name}: takes {', '.join(_features(manifest))}; gives chunks of {chunk[0]} x {chunk[1]}")
    with new_folder(output) as folder:
        for role, model in models.items():
            _write(model, folder / f"{role}.onnx")
        files = {role: f"{role}.onnx" for role in models}
        manifest = replace(manifest, graphs=files, files=bundle.digests(folder))
        bundle.write(folder, manifest)
        say("running it through the server's own engine on the CPU")
        engine = open_engine(bundle.load(folder), Runtime("cpu"))
        pair = _observe(manifest, inputs, np.random.default_rng(SEED))
        actions = engine.infer(pair)
        difference = _repeat(engine, pair, actions)
        say(f"  alone and as a batch: {difference}")
        difference.require("the same observations alone and as a batch")
        bundle.write_reference(folder, pair, actions)
        bundle.write(folder, replace(manifest, files=bundle.digests(folder), parity=asdict(difference)))
    say(f"wrote {output}")


def _read(path: Path) -> onnx.ModelProto:
    """The graph with its weights, as the ONNX checker accepts it. Raises ModelError."""
    try:
        onnx.checker.check_model(str(path), full_check=True)
        return onnx.load(path)
    except Exception as error:  # the checker's, protobuf's and the system's errors share no base of their own
        reason = str(error).strip().splitlines()
        raise ModelError(f"{path}: the ONNX checker refuses it: {reason[0] if reason else type(error)}") from error


def _write(model: onnx.ModelProto, path: Path) -> None:
    large = model.ByteSize() > MOST_BYTES
    onnx.save_model(model, path, save_as_external_data=large, location=f"{path.name}.data" if large else None)


def _extents(value: onnx.ValueInfoProto) -> list[int]:
    """Its extents without the batch; 0 for one that is free."""
    return [int(each.dim_value) for each in value.type.tensor_type.shape.dim][1:]


def _chunk(path: Path, model: onnx.ModelProto) -> tuple[int, int]:
    """Rows and joints of what the graph gives. Raises ModelError."""
    outputs = {each.name: each for each in model.graph.output}
    if ACTION not in outputs:
        raise ModelError(f"{path}: outputs: {sorted(outputs)} have no {ACTION!r}: (batch, rows, joints) in joint units")
    extents = _extents(outputs[ACTION])
    if len(extents) != 2 or 0 in extents:
        raise ModelError(f"{path}: {ACTION}: {extents} behind the batch are not a number of rows and one of joints")
    return extents[0], extents[1]


def _manifest(
    name: str,
    path: Path,
    inputs: Mapping[str, onnx.ValueInfoProto],
    chunk: tuple[int, int],
    request: Request,
    steps: int,
) -> Manifest:
    """All that the graphs and the user say. Raises ModelError, ConfigError."""
    flows = inputs.keys() >= STEP
    given = {"x", "step", "previous", "weights", "gain", "step_noise"} if flows else set()
    cameras, extra = [], []
    for key, value in inputs.items():
        kind, extents = value.type.tensor_type.elem_type, _extents(value)
        if key.startswith(IMAGES):
            if kind != _UINT8 or len(extents) != 3 or extents[2] != 3 or 0 in extents:
                raise ModelError(f"{path}: {key}: {extents} is not uint8 of a fixed (height, width, 3)")
            cameras.append(Camera(key.removeprefix(IMAGES), extents[0], extents[1]))
        elif key == STATE or (key.startswith("observation.") and key not in given):
            if kind != _FLOAT or len(extents) != 1 or 0 in extents:
                raise ModelError(f"{path}: {key}: {extents} is not float32 of a fixed number")
            if key != STATE:
                extra.append(ExtraState(key, extents[0]))
    if STATE not in inputs:
        raise ModelError(f"{path}: inputs: {sorted(inputs)} have no {STATE!r}: (batch, joints) float32 in joint units")
    joints = ", ".join(joint.name for joint in request.joints)
    for what, count in ((STATE, _extents(inputs[STATE])[0]), (ACTION, chunk[1])):
        if count != len(request.joints):
            raise ConfigError(f"names: {len(request.joints)} joints ({joints}), but {what} has {count} numbers")
    return Manifest(
        format=FORMAT,
        name=name,
        type="flow" if flows else "graph",
        precision="fp32",
        joints=request.joints,
        cameras=tuple(cameras),
        extra_state=tuple(extra),
        chunk_size=chunk[0],
        action_dim=chunk[1],
        fps=request.fps,
        uses_task=False,
        temporal_ensemble_coeff=None,
        robot_type=request.robot_type,
        graphs={},
        files={},
        provenance={
            "graph": path.name,
            "graph_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "edge_runtime": importlib.metadata.version("edge-runtime"),
            "onnx": onnx.__version__,
            "onnxruntime": importlib.metadata.version("onnxruntime"),
            "stated_by_user": dict(request.stated),
        },
        parity={},
        steps=steps,
    )


def _features(manifest: Manifest) -> list[str]:
    cameras = [IMAGES + camera.name for camera in manifest.cameras]
    return [STATE, *(each.name for each in manifest.extra_state), *cameras]


def _observe(
    manifest: Manifest, inputs: Mapping[str, onnx.ValueInfoProto], random: np.random.Generator
) -> dict[str, Array]:
    """Random raw observations, and the noise that a flow starts from."""
    pair: dict[str, Any] = {}
    for name in _features(manifest):
        shape = (STORED, *_extents(inputs[name]))
        pixels = name.startswith(IMAGES)
        pair[name] = random.integers(0, 256, shape, np.uint8) if pixels else random.standard_normal(shape, np.float32)
    for name, source in ((NOISE, "x"), ("step_noise", "step_noise")):
        if source in inputs:
            pair[name] = random.standard_normal((STORED, *_extents(inputs[source])), np.float32)
    return pair


def _repeat(engine: Engine, pair: Observation, actions: Any) -> Difference:
    expected = [case[ACTION] for case in cases({ACTION: actions})]
    return Difference.of(expected, [engine.infer(case) for case in cases(pair)])
