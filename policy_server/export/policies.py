"""The two kinds of policy, each with what an export needs of it: inputs to try, torch's answer, and its graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from edge_runtime.errors import ConfigError, ModelError
from edge_runtime.wire.messages import Floats
from policy_server.bundle import TASK
from policy_server.engines.guidance import gains
from policy_server.engines.options import BATCH
from policy_server.engines.smolvla import MAX_TOKENS, NOISE, PREVIOUS, WEIGHTS
from policy_server.engines.tokens import Tokenizer
from policy_server.export import tokenizer, vlm
from policy_server.export.act import ACT
from policy_server.export.checkpoint import Checkpoint, Feature
from policy_server.export.graph import GraphOptions, export_graph
from policy_server.export.parity import Array, Observation
from policy_server.export.smolvla import Prefix, SmolVLA, Step

TASKS = ("pick up the red cube", "put it down", "open the drawer on the left and take out the spoon")


class Policy(Protocol):
    """What the exporter asks of a policy, whatever its kind. Observations are an engine's batches."""

    features: tuple[Feature, ...]  # what it reads, in the order of its graph's inputs
    inputs: tuple[str, ...]  # their names outside
    uses_task: bool
    module: nn.Module

    def observe(self, count: int, random: np.random.Generator) -> dict[str, Array]:
        """`count` random raw observations."""

    def answer(self, observation: Observation) -> Floats:
        """Torch's actions for a batch, (B, chunk, joints) in joint units."""

    def write(self, folder: Path, options: GraphOptions) -> dict[str, str]:
        """Write the graphs, and what else the engine reads, into `folder`; role -> file name of each graph."""


def build(checkpoint: Checkpoint, tokenizer_folder: Path | None) -> Policy:
    """The policy of a checkpoint. Raises ModelError (not supported), ConfigError (tokenizer not found)."""
    if checkpoint.policy_type == "act":
        return ActPolicy(checkpoint)
    return SmolVLAPolicy(checkpoint, tokenizer_folder)


class ActPolicy:
    """ACT: one graph."""

    uses_task = False

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self.module = ACT(checkpoint)
        self.features, self.inputs = self.module.features, self.module.inputs

    def observe(self, count: int, random: np.random.Generator) -> dict[str, Array]:
        return raw(self._checkpoint, self, count, random)

    def answer(self, observation: Observation) -> Floats:
        with torch.inference_mode():
            actions: Floats = self.module(*tensors(observation, self.inputs)).numpy()
        return actions

    def write(self, folder: Path, options: GraphOptions) -> dict[str, str]:
        example = tensors(self.observe(2, np.random.default_rng(0)), self.inputs)
        export_graph(
            self.module, dict(zip(self.inputs, example, strict=True)), ["action"], folder / "policy.onnx", options
        )
        return {"policy": "policy.onnx"}


class SmolVLAPolicy:
    """SmolVLA: prefix and step, and the tokenizer that the engine reads."""

    uses_task = True

    def __init__(self, checkpoint: Checkpoint, stated: Path | None) -> None:
        places = tokenizer.folders(checkpoint, stated)
        self._checkpoint = checkpoint
        tokenizer_file = tokenizer.locate(checkpoint, places)
        try:
            self._tokenizer_bytes = tokenizer_file.read_bytes()
        except OSError as error:
            raise ModelError(f"{tokenizer_file.name}: cannot be read: {error.strerror or error}") from error
        self.tokenizer = Tokenizer(tokenizer_file, tokenizer.max_tokens(checkpoint))
        config = vlm.read_config(checkpoint.setting("vlm_model_name", str), places)
        markers: list[int] = []
        if checkpoint.config.get("add_image_special_tokens"):
            found = [self.tokenizer.id_of(token) for token in tokenizer.MARKERS]
            markers = [token for token in found if token is not None]
            if len(markers) < len(found):
                raise ModelError(f"add_image_special_tokens: the tokenizer lacks {' or '.join(tokenizer.MARKERS)}")
        self.module = SmolVLA(checkpoint, config, self.tokenizer.length, markers)
        if self.tokenizer.vocabulary > self.module.text.embed_tokens.num_embeddings:
            raise ModelError(
                f"tokenizer: {self.tokenizer.vocabulary} tokens, but the policy has "
                f"{self.module.text.embed_tokens.num_embeddings}; it belongs to another model"
            )
        self.prefix, self.step = Prefix(self.module).eval(), Step(self.module).eval()
        self.features, self.inputs = self.module.features, self.module.inputs

    def observe(self, count: int, random: np.random.Generator) -> dict[str, Array]:
        shape = (count, self.module.chunk, self.module.width)
        return raw(self._checkpoint, self, count, random) | {
            TASK: random.choice(np.array(TASKS), count),
            NOISE: random.standard_normal(shape, np.float32),
        }

    def answer(self, observation: Observation) -> Floats:
        text = self.tokenizer([str(task) for task in observation[TASK]], [self.tokenizer.length])
        size, (rows, joints) = len(text[0]), (self.module.chunk, self.module.joints)
        previous = observation.get(PREVIOUS, np.zeros((size, rows, joints), np.float32))
        weights = observation.get(WEIGHTS, np.zeros((size, rows), np.float32))
        with torch.inference_mode():
            seen = self.prefix(*tensors(observation, self.inputs), *map(torch.from_numpy, text))
            guidance = (previous, weights, np.tile(gains(self.module.steps), (size, 1)))
            x = torch.from_numpy(observation[NOISE])
            for step in range(self.module.steps):
                x, actions = self.step(x, torch.tensor([step]), *seen, *map(torch.from_numpy, guidance))
        return np.asarray(actions.numpy(), np.float32)

    def write(self, folder: Path, options: GraphOptions) -> dict[str, str]:
        if options.dynamic and self.tokenizer.length != MAX_TOKENS:
            raise ConfigError(
                f"dynamic: the policy takes {self.tokenizer.length} tokens at most, "
                f"and a free number ends at {MAX_TOKENS}; export it without"
            )
        observation = self.observe(2, np.random.default_rng(0))
        text = self.tokenizer([str(task) for task in observation[TASK]], [self.tokenizer.length])
        inputs = dict(zip(self.inputs, tensors(observation, self.inputs), strict=True))
        inputs |= {"tokens": torch.from_numpy(text[0]), "token_mask": torch.from_numpy(text[1])}
        with torch.no_grad():
            outputs = dict(zip(("keys", "values", "mask"), self.prefix(*inputs.values()), strict=True))
        free = {key: {0: BATCH, 1: "length"} for key in ("tokens", "token_mask")}
        export_graph(self.prefix, inputs, list(outputs), folder / "prefix.onnx", options, free)

        rows, joints = self.module.chunk, self.module.joints
        step = {
            "x": torch.from_numpy(observation[NOISE]),
            "step": torch.tensor([0]),
            **outputs,
            PREVIOUS: torch.zeros(2, rows, joints),
            WEIGHTS: torch.zeros(2, rows),
            "gain": torch.zeros(2, self.module.steps),
        }
        cache = {1: BATCH, 3: "length"}
        free = {"step": {}, "keys": cache, "values": cache, "mask": {0: BATCH, 1: "length"}}
        export_graph(self.step, step, ["next", "action"], folder / "step.onnx", options, free)
        (folder / "tokenizer.json").write_bytes(self._tokenizer_bytes)
        return {"prefix": "prefix.onnx", "step": "step.onnx"}


def raw(checkpoint: Checkpoint, policy: Policy, count: int, random: np.random.Generator) -> dict[str, Array]:
    """Random values for the features of a policy, under their names outside."""
    drawn = (checkpoint.draw(feature, count, random) for feature in policy.features)
    return dict(zip(policy.inputs, drawn, strict=True))


def tensors(observation: Mapping[str, Any], names: Sequence[str]) -> list[Tensor]:
    return [torch.from_numpy(observation[name]) for name in names]
