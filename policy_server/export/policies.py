"""The kinds of policy, each with what an export needs of it: inputs to try, torch's answer, and its graphs."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from edge_runtime.errors import ConfigError, ModelError
from edge_runtime.wire.messages import Floats
from policy_server.bundle import STATE, TASK, StateText
from policy_server.engines.flow import GAIN, MAX_TOKENS, NOISE, PREVIOUS, STEP_NOISE, TEXT, WEIGHTS
from policy_server.engines.guidance import gains
from policy_server.engines.options import BATCH
from policy_server.engines.tokens import Tokenizer, prompts
from policy_server.export import diffusion, pi, pipeline, smolvla, tokenizer, vlm
from policy_server.export.act import ACT
from policy_server.export.checkpoint import Checkpoint, Feature
from policy_server.export.graph import Axes, GraphOptions, export_graph
from policy_server.export.parity import Array, Observation

TASKS = ("pick up the red cube", "put it down", "open the drawer on the left and take out the spoon")


class Policy(Protocol):
    """What the exporter asks of a policy, whatever its kind. Observations are an engine's batches."""

    features: tuple[Feature, ...]  # what it reads, in the order of its graph's inputs
    inputs: tuple[str, ...]  # their names outside
    uses_task: bool
    chunk: int  # rows of actions
    observations: int  # how many of the last ones it looks at
    steps: int  # of denoising; 0 = none
    state_text: StateText | None
    guided: bool  # whether its step graph can be guided by a plan
    module: nn.Module

    def observe(self, count: int, random: np.random.Generator) -> dict[str, Array]:
        """`count` random raw observations."""

    def answer(self, observation: Observation) -> Floats:
        """Torch's actions for a batch, (B, chunk, joints) in joint units."""

    def write(self, folder: Path, options: GraphOptions) -> dict[str, str]:
        """Write the graphs, and what else the engine reads, into `folder`; role -> file name of each graph."""


def build(checkpoint: Checkpoint, tokenizer_folder: Path | None, state_numbers: int | None = None) -> Policy:
    """The policy of a checkpoint, with what the user stated where only he knows.

    Raises ModelError (not supported), ConfigError (tokenizer not found, `state_numbers` missing or wrong).
    """
    match checkpoint.policy_type:
        case "act":
            return ActPolicy(checkpoint)
        case "smolvla":
            return smolvla_policy(checkpoint, tokenizer_folder)
        case "diffusion":
            return diffusion_policy(checkpoint)
        case _:
            return pi_policy(checkpoint, tokenizer_folder, state_numbers)


class ActPolicy:
    """ACT: one graph."""

    uses_task = guided = False
    observations, steps = 1, 0
    state_text: StateText | None = None

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self.module = ACT(checkpoint)
        self.chunk = checkpoint.setting("chunk_size", int)
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


class FlowPolicy:
    """A policy that flows from noise to actions: prefix and step, and the tokenizer where it reads text."""

    def __init__(
        self, checkpoint: Checkpoint, module: nn.Module, prefix: nn.Module, step: nn.Module, text: Text | None
    ) -> None:
        self._checkpoint = replace(checkpoint, tensors={})  # the module has them
        self._text = text
        self.module, self.prefix, self.step = module, prefix.eval(), step.eval()
        self.features, self.inputs = module.features, module.inputs
        self.chunk, self.observations, self.steps = module.chunk, module.observations, module.steps
        self.uses_task = text is not None
        self.state_text = text.state if text else None
        self._observed = [name for name in self.inputs if name != STATE or self.state_text is None]
        takes = inspect.signature(step.forward).parameters
        self.guided, self._noisy = "gain" in takes, module.noisy

    def observe(self, count: int, random: np.random.Generator) -> dict[str, Array]:
        shape = self.module.noise_shape
        drawn = raw(self._checkpoint, self, count, random)
        if self.uses_task:
            drawn[TASK] = random.choice(np.array(TASKS), count)
        drawn[NOISE] = random.standard_normal((count, *shape), np.float32)
        if self._noisy:
            drawn[STEP_NOISE] = random.standard_normal((count, self.steps, *shape), np.float32)
        return drawn

    def answer(self, observation: Observation) -> Floats:
        x = torch.from_numpy(observation[NOISE])
        with torch.inference_mode():
            seen = self._see(observation)
            more = self._more(observation).values()
            for step in range(self.steps):
                x, actions = self.step(x, torch.tensor([step]), *seen.values(), *more)
        return np.asarray(actions.numpy(), np.float32)

    def write(self, folder: Path, options: GraphOptions) -> dict[str, str]:
        if options.dynamic and self._text is None:
            raise ConfigError("dynamic: it leaves the number of tokens free, and this policy reads no text")
        if options.dynamic and self._text and self._text.tokenizer.length != MAX_TOKENS:
            raise ConfigError(
                f"dynamic: the policy takes {self._text.tokenizer.length} tokens at most, "
                f"and a free number ends at {MAX_TOKENS}; export it without"
            )
        observation = self.observe(2, np.random.default_rng(0))
        inputs = self._inputs(observation)
        with torch.no_grad():
            outputs = self._see(observation)
        length = {0: BATCH, 1: "length"}
        export_graph(self.prefix, inputs, list(outputs), folder / "prefix.onnx", options, dict.fromkeys(TEXT, length))
        step = {"x": torch.from_numpy(observation[NOISE]), "step": torch.tensor([0]), **outputs}
        cache = {1: BATCH, 3: "length"}
        free: dict[str, Axes] = {"step": {}, "keys": cache, "values": cache, "mask": length}
        names = ["next", "action"]
        export_graph(self.step, step | self._more(observation), names, folder / "step.onnx", options, free)
        if self._text is not None:
            (folder / tokenizer.FILE).write_bytes(self._text.file)
        return {"prefix": "prefix.onnx", "step": "step.onnx"}

    def _inputs(self, observation: Observation) -> dict[str, Tensor]:
        """What the prefix takes, by the names of the graph's inputs."""
        inputs = dict(zip(self._observed, tensors(observation, self._observed), strict=True))
        if self._text is not None:
            texts = prompts(observation[TASK], observation[STATE], self.state_text)
            tokens = self._text.tokenizer(texts, [self._text.tokenizer.length])
            inputs |= dict(zip(TEXT, map(torch.from_numpy, tokens), strict=True))
        return inputs

    def _see(self, observation: Observation) -> dict[str, Tensor]:
        """What the prefix gives, by the names of the graph's outputs."""
        given = self.prefix(*self._inputs(observation).values())
        return dict(zip(self.prefix.outputs, given if isinstance(given, tuple) else (given,), strict=True))

    def _more(self, observation: Observation) -> dict[str, Tensor]:
        """What else the step takes: guidance, or its own noise."""
        size, rows, joints = len(observation[NOISE]), self.chunk, self._checkpoint.action.shape[0]
        more: dict[str, Array] = {}
        if self.guided:
            more[PREVIOUS] = observation.get(PREVIOUS, np.zeros((size, rows, joints), np.float32))
            more[WEIGHTS] = observation.get(WEIGHTS, np.zeros((size, rows), np.float32))
            more[GAIN] = np.tile(gains(self.steps), (size, 1))
        if self._noisy:
            more[STEP_NOISE] = observation[STEP_NOISE]
        return {name: torch.from_numpy(array) for name, array in more.items()}


@dataclass(frozen=True)
class Text:
    """The tokenizer, its file's bytes, and how the state becomes text where it does."""

    tokenizer: Tokenizer
    file: bytes
    state: StateText | None = None

    @classmethod
    def of(cls, checkpoint: Checkpoint, places: Sequence[Path], state: StateText | None = None) -> Text:
        path = tokenizer.locate(checkpoint, places)
        try:
            file = path.read_bytes()
        except OSError as error:
            raise ModelError(f"{path.name}: cannot be read: {error.strerror or error}") from error
        return cls(Tokenizer(path, tokenizer.max_tokens(checkpoint)), file, state)

    def check_vocabulary(self, embedded: int) -> None:
        """Raises ModelError when the tokenizer knows tokens that the policy does not."""
        if self.tokenizer.vocabulary > embedded:
            raise ModelError(
                f"tokenizer: {self.tokenizer.vocabulary} tokens, but the policy has {embedded}; "
                f"it belongs to another model"
            )


def smolvla_policy(checkpoint: Checkpoint, stated: Path | None) -> FlowPolicy:
    places = tokenizer.folders(checkpoint, stated)
    text = Text.of(checkpoint, places)
    config = vlm.read_config(checkpoint.setting("vlm_model_name", str), places)
    markers: list[int] = []
    if checkpoint.config.get("add_image_special_tokens"):
        found = [text.tokenizer.id_of(token) for token in tokenizer.MARKERS]
        markers = [token for token in found if token is not None]
        if len(markers) < len(found):
            raise ModelError(f"add_image_special_tokens: the tokenizer lacks {' or '.join(tokenizer.MARKERS)}")
    module = smolvla.SmolVLA(checkpoint, config, text.tokenizer.length, markers)
    text.check_vocabulary(module.text.embed_tokens.num_embeddings)
    return FlowPolicy(checkpoint, module, smolvla.Prefix(module), smolvla.Step(module), text)


def pi_policy(checkpoint: Checkpoint, stated: Path | None, state_numbers: int | None) -> FlowPolicy:
    state = state_text(checkpoint, state_numbers) if checkpoint.policy_type == "pi05" else None
    text = Text.of(checkpoint, tokenizer.folders(checkpoint, stated), state)
    module = pi.PI(checkpoint, text.tokenizer.length)
    text.check_vocabulary(module.text.embed_tokens.num_embeddings)
    return FlowPolicy(checkpoint, module, pi.Prefix(module), pi.Step(module), text)


def state_text(checkpoint: Checkpoint, stated: int | None) -> StateText:
    """How PI0.5's prompt says the state. Raises ConfigError where only the user knows how many numbers it holds."""
    state = next(feature for feature in checkpoint.inputs if feature.name == STATE)
    joints, widest = state.shape[0], checkpoint.setting("max_state_dim", int)
    if stated is None and pipeline.RELATIVE not in checkpoint.listed:
        raise ConfigError(
            f"state_numbers: LeRobot 0.4 wrote {widest} numbers into the prompt, later releases {joints}, and this "
            f"checkpoint does not say which trained it; give --state_numbers={widest} or --state_numbers={joints}"
        )
    if stated not in (None, joints, widest):
        raise ConfigError(f"state_numbers: {stated} is not {joints} (one for each joint) or {widest} (LeRobot 0.4)")
    affine = checkpoint.normalise(state)
    return StateText(affine.centre.tolist(), (1 / affine.scale).tolist(), affine.offset.tolist(), stated or joints)


def diffusion_policy(checkpoint: Checkpoint) -> FlowPolicy:
    module = diffusion.Diffusion(checkpoint)
    return FlowPolicy(checkpoint, module, diffusion.Prefix(module), diffusion.Step(module), None)


def raw(checkpoint: Checkpoint, policy: Policy, count: int, random: np.random.Generator) -> dict[str, Array]:
    """Random values for the features of a policy, under their names outside."""
    axes = (count, policy.observations) if policy.observations > 1 else (count,)
    drawn = (checkpoint.draw(feature, math.prod(axes), random) for feature in policy.features)
    return {name: values.reshape(*axes, *values.shape[1:]) for name, values in zip(policy.inputs, drawn, strict=True)}


def tensors(observation: Mapping[str, Any], names: Sequence[str]) -> list[Tensor]:
    return [torch.from_numpy(observation[name]) for name in names]
