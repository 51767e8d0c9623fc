"""A folder written by LeRobot, read into one value: configuration, tensors, statistics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from edge_runtime.errors import ModelError
from policy_server.export import pipeline
from policy_server.export.normalisation import Affine, normalise, unnormalise
from policy_server.export.statistics import Normalisation, from_steps
from policy_server.export.weights import digest, read_weights, weight_files

STATE, ACTION, IMAGES = "observation.state", "action", "observation.images."
TYPES = ("act",)
T = TypeVar("T")


@dataclass(frozen=True)
class Feature:
    """An input or output of the policy: its kind (`STATE`, `ENV`, `VISUAL`, `ACTION`) and shape, images (3, H, W)."""

    name: str
    type: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Checkpoint:
    """All that a policy is, before any module is built.

    `inputs` in the configuration's order, under the policy's own names; `renamed` maps those to the names under which
    the robot gives them. `tensors` are float32 and keep the checkpoint's names.
    """

    folder: Path
    type: str
    config: Mapping[str, Any]
    inputs: tuple[Feature, ...]
    action: Feature
    tensors: Mapping[str, Tensor]
    normalisation: Normalisation
    renamed: Mapping[str, str]
    weights_sha256: str

    def setting(self, name: str, kind: type[T] | tuple[type[T], ...]) -> T:
        """A value of config.json. Raises ModelError when it is missing or of another kind."""
        value = self.config.get(name)
        if not isinstance(value, kind):
            raise ModelError(f"config.json: {name} is {json.dumps(value)}, which is not a value for it")
        return value

    def of_type(self, kind: str) -> tuple[Feature, ...]:
        return tuple(feature for feature in self.inputs if feature.type == kind)

    def outside(self, feature: Feature) -> str:
        """The name under which the robot gives `feature`."""
        return self.renamed.get(feature.name, feature.name)

    def normalise(self, feature: Feature) -> Affine:
        """What takes raw values of an input to the network's; per colour for images in 0..1."""
        chosen = self.normalisation
        mode = chosen.modes.get(feature.type, "IDENTITY")
        return normalise(feature.name, mode, chosen.inputs.get(feature.name, {}), feature.shape[0], chosen.rule)

    def unnormalise(self) -> Affine:
        """What takes the network's actions to joint units."""
        chosen = self.normalisation
        mode = chosen.modes.get("ACTION", "IDENTITY")
        return unnormalise(ACTION, mode, chosen.outputs.get(ACTION, {}), self.action.shape[0], chosen.rule)


def load(folder: Path) -> Checkpoint:
    """Read the checkpoint in `folder`. Raises ModelError with the file and the reason when it cannot be exported."""
    config = read_config(folder)
    pre = pipeline.read_steps(folder / pipeline.PRE)
    post = pipeline.read_steps(folder / pipeline.POST)
    inputs = tuple(features(config, "input_features"))
    outputs = {feature.name: feature for feature in features(config, "output_features")}
    if set(outputs) != {ACTION}:
        raise ModelError(f"output_features: {', '.join(outputs) or 'none'}; expected action alone")
    check_inputs(inputs)
    return Checkpoint(
        folder=folder,
        type=config["type"],
        config=config,
        inputs=inputs,
        action=outputs[ACTION],
        tensors=read_weights(folder),
        normalisation=from_steps(pre, post),
        renamed=renamed(inputs, pre),
        weights_sha256=digest(weight_files(folder)),
    )


def read_config(folder: Path) -> dict[str, Any]:
    """The policy's `config.json`, refused where it asks for what an export cannot give."""
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(f"{folder}: no config.json; expected a folder written by lerobot-train (…/pretrained_model)")
    try:
        config = json.loads(path.read_text())
    except ValueError as error:
        raise ModelError(f"config.json: not JSON ({error})") from error
    if not isinstance(config, dict) or config.get("type") not in TYPES:
        kind = config.get("type") if isinstance(config, dict) else None
        raise ModelError(f"config.json: policy type {kind} is not supported; expected {' or '.join(TYPES)}")
    if config.get("use_peft") or (folder / "adapter_config.json").is_file():
        raise ModelError("use_peft: the weights are an adapter; merge it into its base model and save that")
    if config.get("n_obs_steps", 1) != 1:
        raise ModelError(
            f"n_obs_steps: {config['n_obs_steps']} past observations feed the policy, and a robot sends one; expected 1"
        )
    return config


def features(config: Mapping[str, Any], key: str) -> list[Feature]:
    try:
        return [
            Feature(name, entry["type"], tuple(int(size) for size in entry["shape"]))
            for name, entry in config[key].items()
        ]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ModelError(f"config.json: {key} is not a table of features with type and shape") from error


def check_inputs(inputs: tuple[Feature, ...]) -> None:
    for feature in inputs:
        expected = 3 if feature.type == "VISUAL" else 1
        if feature.type not in ("STATE", "ENV", "VISUAL") or len(feature.shape) != expected or min(feature.shape) < 1:
            raise ModelError(f"input_features: {feature.name} is {feature.type} of shape {list(feature.shape)}")
        if feature.type == "VISUAL" and feature.shape[0] != 3:
            raise ModelError(f"input_features: {feature.name} has {feature.shape[0]} channels, expected 3 (RGB)")
    if STATE not in {feature.name for feature in inputs}:
        raise ModelError(f"input_features: no {STATE}, without which a robot cannot be asked for its joints")


def renamed(inputs: tuple[Feature, ...], pre: Mapping[str, pipeline.Step]) -> dict[str, str]:
    """The policy's name -> the robot's name, from LeRobot's `rename_map` (robot's name -> policy's name)."""
    step = pre.get("rename_observations_processor")
    forward = dict(step.config.get("rename_map") or {}) if step else {}
    backward = {new: old for old, new in forward.items()}
    outside = [backward.get(feature.name, feature.name) for feature in inputs]
    lost = [name for name, feature in zip(outside, inputs, strict=True) if name in forward and forward[name] != feature.name]
    if len(backward) != len(forward) or len(set(outside)) != len(outside) or lost:
        raise ModelError(f"rename_map: {json.dumps(forward)} leaves two features with one name")
    return backward


def draw(checkpoint: Checkpoint, feature: Feature, count: int, random: np.random.Generator) -> np.ndarray:
    """`count` plausible raw values of an input: uniform pixels, or numbers spread as the training data were."""
    if feature.type == "VISUAL":
        _, height, width = feature.shape
        return random.integers(0, 256, (count, height, width, 3), dtype=np.uint8)
    affine = checkpoint.normalise(feature)
    normal = random.standard_normal((count, *feature.shape))
    return ((normal - affine.offset) / affine.scale + affine.centre).astype(np.float32)
