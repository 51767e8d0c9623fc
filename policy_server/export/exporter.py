"""From a checkpoint's folder to a bundle's: load, export, compare, write, and only then give it its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edge_runtime.errors import ConfigError
from edge_runtime.wire.messages import Joint
from policy_server.export import bundle_writer, reference
from policy_server.export.act import ACT
from policy_server.export.checkpoint import STATE, Checkpoint, draw, load
from policy_server.export.folder import new_folder
from policy_server.export.graph import export_graph, round_weights
from policy_server.export.parity import Difference, Floats, Observation, open_graph, random_observations, rows

SEED = 20240613
MAX_ROUNDING = 0.05  # what float16 weights may cost, as a part of the actions' own spread
STORED_ROWS = 2
Say = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """What the user stated: all that a LeRobot checkpoint does not hold, and how the graph is to be."""

    joints: tuple[Joint, ...]
    fps: float
    robot_type: str | None = None
    precision: str = "fp32"
    opset: int = 18
    stated: Mapping[str, Any] = field(default_factory=dict)


def export(source: Path, output: Path, request: Request, say: Say) -> None:
    """Export the checkpoint in `source` as the bundle `output`, telling `say` how far it is.

    Raises ModelError when the checkpoint cannot be exported faithfully, ConfigError when what the user stated does not
    fit it, OutputError when the bundle cannot be written.
    """
    with new_folder(output) as folder:
        say(f"reading {source}")
        checkpoint = load(source)
        check_joints(checkpoint, request.joints)
        policy = ACT(checkpoint)
        halve = request.precision == "fp16"
        random = np.random.default_rng(SEED)
        observations = random_observations(lambda count: observe(checkpoint, policy, count, random))
        exact = answers(policy, observations)
        if halve:
            round_weights(policy)

        parameters = sum(parameter.numel() for parameter in policy.parameters())
        say(f"exporting policy.onnx: {parameters:,} parameters, {request.precision}, opset {request.opset}")
        example = [torch.from_numpy(array) for array in observe(checkpoint, policy, 2, random).values()]
        path = folder / "policy.onnx"
        export_graph(policy, example, policy.inputs, ["action"], path, opset=request.opset, halve=halve)

        say("comparing torch with ONNX Runtime")
        graph = open_graph(path)
        scale = checkpoint.unnormalise().scale
        expected = answers(policy, observations)
        difference = Difference.of(expected, [graph(observation) for observation in observations], scale)
        difference.require("ONNX Runtime against torch, random inputs")
        say(f"  random inputs: {difference}")
        parity = asdict(difference) | {"unit": "joint units", "references": {}}
        if halve:
            rounding = Difference.of(exact, expected, scale)
            rounding.require("float16 against float32 weights", np.inf, MAX_ROUNDING)
            say(f"  cost of float16 weights: {rounding}")
            parity["rounding"] = asdict(rounding)
        pair = observations[0]
        if (stored := reference.find(source)) is not None:
            known = reference.read(stored, policy.features)
            renamed = {checkpoint.renamed.get(name, name): array for name, array in known.inputs.items()}
            cases, wanted = rows(renamed), [case["action"] for case in rows({"action": known.actions})]
            against = Difference.of(wanted, [graph(case) for case in cases], scale)
            against.require(known.name, *((np.inf, MAX_ROUNDING) if halve else ()))
            say(f"  {known.name}: {against}")
            parity["references"][known.name] = asdict(against)
            pair = {name: array[:STORED_ROWS] for name, array in renamed.items()}

        bundle_writer.write_reference(folder, pair, answers(policy, [pair])[0])
        bundle_writer.write_manifest(
            folder,
            checkpoint,
            name=output.name,
            joints=request.joints,
            fps=request.fps,
            graphs={"policy": path.name},
            precision=request.precision,
            robot_type=request.robot_type,
            parity=parity,
            opset=request.opset,
            stated=request.stated,
        )
    say(f"wrote {output}")


def observe(checkpoint: Checkpoint, policy: ACT, count: int, random: np.random.Generator) -> Observation:
    """`count` random raw observations, in the order of the policy's inputs."""
    drawn = (draw(checkpoint, feature, count, random) for feature in policy.features)
    return dict(zip(policy.inputs, drawn, strict=True))


def answers(policy: ACT, observations: Sequence[Observation]) -> list[Floats]:
    """What torch says to each, (B, chunk, joints) in joint units."""
    with torch.inference_mode():
        return [
            policy(*(torch.from_numpy(observation[name]) for name in policy.inputs)).numpy()
            for observation in observations
        ]


def check_joints(checkpoint: Checkpoint, joints: Sequence[Joint]) -> None:
    """Raises ConfigError unless `joints` fit both what the policy reads and what it commands."""
    state = next(feature for feature in checkpoint.inputs if feature.name == STATE)
    for name, dimension in ((STATE, state.shape[0]), ("action", checkpoint.action.shape[0])):
        if dimension != len(joints):
            names = ", ".join(joint.name for joint in joints)
            raise ConfigError(f"names: {len(joints)} joints ({names}), but {name} of the checkpoint has {dimension}")
