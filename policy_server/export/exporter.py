"""From a checkpoint's folder to a bundle's: load, export, compare, write, and only then give it its name."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from edge_runtime.errors import ConfigError
from edge_runtime.wire.messages import Floats, Joint
from policy_server import bundle
from policy_server.engines import open_engine
from policy_server.engines.providers import Runtime
from policy_server.export import checkpoint as checkpoints
from policy_server.export import reference, statistics
from policy_server.export.bundle_writer import manifest_of
from policy_server.export.checkpoint import Checkpoint
from policy_server.export.folder import new_folder, refuse_existing
from policy_server.export.graph import GraphOptions, round_weights
from policy_server.export.parity import MAX_NORMALISED, Difference, Observation, cases, random_observations
from policy_server.export.policies import build
from policy_server.export.progress import Progress
from policy_server.export.reference import Reference
from policy_server.export.request import Request

SEED = 20240613
MAX_ROUNDING = 0.05  # what float16 weights may cost, as a part of the actions' own spread
STORED = 2  # rows of the stored pair


def export(source: Path, output: Path, request: Request, say: Progress) -> None:
    """Export the checkpoint in `source` as the bundle `output`.

    Raises ModelError when the checkpoint cannot be exported faithfully, ConfigError when what the user stated does not
    fit it, OutputError when the bundle cannot be written.
    """
    refuse_existing(output)
    say(f"reading {source}")
    stats = statistics.from_file(request.stats) if request.stats else None
    checkpoint = checkpoints.load(source, stats, request.image_size, request.cameras)
    check_joints(checkpoint, request.joints)
    if unknown := checkpoint.unknown_cameras:
        say(f"  the statistics do not know {', '.join(unknown)}; where no training had it: --cameras with the others")
    policy = build(checkpoint, request.tokenizer, request.state_numbers)
    parameters = sum(parameter.numel() for parameter in policy.module.parameters())
    say(f"{checkpoint.policy_type}: {parameters:,} parameters; takes {', '.join(policy.inputs)}")
    references = list(reference.find(checkpoint, policy))
    checkpoint = replace(checkpoint, tensors={})  # they are the policy's now
    with new_folder(output) as folder:  # all that is read was read: from here on, what fails is writing
        random = np.random.default_rng(SEED)
        observations = random_observations(partial(policy.observe, random=random))
        halve = request.precision == "fp16"
        exact = answers(policy.answer, observations, say) if halve else []
        if halve:
            round_weights(policy.module)

        say(f"exporting in {request.precision}, opset {request.opset}")
        graphs = policy.write(folder, GraphOptions(request.opset, halve, request.dynamic))
        for path in sorted(folder.iterdir()):
            say(f"  {path.name}: {path.stat().st_size / 1e6:,.1f} MB")
        pair = {
            name: array[:STORED]
            for name, array in (references[0].observation if references else observations[0]).items()
        }
        bundle.write_reference(folder, pair, policy.answer(pair))
        manifest = manifest_of(folder, output.name, checkpoint, policy, request, graphs)
        bundle.write(folder, manifest)

        say("comparing with torch, through the server's own engine on the CPU")
        expected = answers(policy.answer, observations, say)
        for parameter in policy.module.parameters():  # large weights are not in memory twice; torch's exporter keeps
            parameter.data = parameter.data.new_empty(0)  # its last graph for ever, and the parameters with it
        del policy
        gc.collect()
        engine = open_engine(bundle.load(folder), Runtime("cpu"))
        scale = checkpoint.unnormalise().scale
        difference = Difference.of(expected, answers(engine.infer, observations, say), scale)
        say(f"  random observations: {difference}")
        difference.require("ONNX Runtime against torch")
        parity: dict[str, Any] = asdict(difference) | {"unit": "joint units", "scale": scale.tolist(), "references": {}}
        if halve:
            rounding = Difference.of(exact, expected, scale)
            say(f"  cost of float16 weights: {rounding}")
            rounding.require("float16 against float32 weights", MAX_ROUNDING)
            parity["rounding"] = asdict(rounding)
        for known in references:
            against = hold_against(known, engine.infer, scale)
            say(f"  {known.name}: {against}")
            against.require(known.name, MAX_ROUNDING if halve else MAX_NORMALISED)
            parity["references"][known.name] = asdict(against)
        bundle.write(folder, replace(manifest, parity=parity))
    say(f"wrote {output}")


def answers(
    answer: Callable[[Observation], Floats], observations: Sequence[Observation], say: Progress
) -> list[Floats]:
    """What one side says to each observation."""
    actions = []
    for number, observation in enumerate(observations):
        say.beat(f"  {number} of {len(observations)}")
        actions.append(answer(observation))
    return actions


def hold_against(known: Reference, infer: Callable[[Observation], Floats], scale: Any) -> Difference:
    """The engine against a stored pair: its rows one by one, and a batch of three."""
    pairs = list(zip(cases(known.observation), cases({"action": known.actions}), strict=True))
    return Difference.of([pair["action"] for _, pair in pairs], [infer(case) for case, _ in pairs], scale)


def check_joints(checkpoint: Checkpoint, joints: Sequence[Joint]) -> None:
    """Raises ConfigError unless `joints` fit both what the policy reads and what it commands."""
    state = next(feature for feature in checkpoint.inputs if feature.name == bundle.STATE)
    for feature in (state, checkpoint.action):
        if feature.shape != (len(joints),):
            names = ", ".join(joint.name for joint in joints)
            raise ConfigError(
                f"names: {len(joints)} joints ({names}), but {feature.name} has {feature.shape[0]} numbers"
            )
