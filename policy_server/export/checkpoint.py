"""A folder written by LeRobot, read into one value: configuration, tensors, statistics."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

from edge_runtime.errors import ConfigError, ModelError
from edge_runtime.program import files
from edge_runtime.wire.fit import MAY_LACK_CAMERAS
from policy_server.bundle import ACTION, IMAGES, STATE
from policy_server.export import pipeline
from policy_server.export.normalisation import Affine, Statistics, normalise, unnormalise
from policy_server.export.statistics import Normalisation, from_steps, from_weights
from policy_server.export.weights import digest, read_weights, weight_files

TYPES = ("act", "smolvla", "pi0", "pi05", "diffusion")
CHANGES_THE_PICTURE = ("resize_shape", "crop_shape", "crop_ratio")  # of forks; LeRobot has them in diffusion alone
T = TypeVar("T")
Sizes = Mapping[str, tuple[int, int]]  # camera, or "" for all -> (height, width)


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
    the robot gives them; `frames` holds the sizes of frames that are not those of the feature. `tensors` are float32
    and keep the checkpoint's names; `pre` are the steps of its pre-processor, none up to LeRobot 0.3, and `listed` also
    those that are switched off.
    """

    folder: Path
    policy_type: str
    config: Mapping[str, Any]
    inputs: tuple[Feature, ...]
    action: Feature
    tensors: Mapping[str, Tensor]
    normalisation: Normalisation
    pre: Mapping[str, pipeline.Step]
    listed: frozenset[str]
    renamed: Mapping[str, str]
    frames: Sizes
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

    def frame(self, camera: Feature) -> tuple[int, int]:
        """Height and width of the frames that the robot gives for `camera`."""
        height, width = camera.shape[1:]
        return self.frames.get(self.outside(camera).removeprefix(IMAGES), self.frames.get("", (height, width)))

    @property
    def unknown_cameras(self) -> list[str]:
        """Cameras that the configuration declares and the statistics do not know, though they know others."""
        cameras = self.of_type("VISUAL")
        known = [camera for camera in cameras if camera.name in self.normalisation.inputs]
        return [self.outside(each).removeprefix(IMAGES) for each in cameras if known and each not in known]

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

    def draw(self, feature: Feature, count: int, random: np.random.Generator) -> npt.NDArray[Any]:
        """`count` plausible raw values of an input: uniform pixels, or numbers spread as the training data were."""
        if feature.type == "VISUAL":
            return random.integers(0, 256, (count, *self.frame(feature), 3), dtype=np.uint8)
        affine = self.normalise(feature)
        normal = random.standard_normal((count, *feature.shape))
        return ((normal - affine.offset) / affine.scale + affine.centre).astype(np.float32)


def load(
    folder: Path, statistics: Statistics | None = None, frames: Sizes | None = None, cameras: Sequence[str] = ()
) -> Checkpoint:
    """Read the checkpoint in `folder`; `statistics` stand in for its own, `frames` for its cameras' sizes.

    Of its cameras only `cameras` are kept, by the names that the robot has for them; none given = all.

    Raises ModelError with the file and the reason when it cannot be exported, ConfigError for a camera it lacks.
    """
    config = read_config(folder)
    inputs = features(config, "input_features")
    outputs = {feature.name: feature for feature in features(config, "output_features")}
    if set(outputs) != {ACTION}:
        raise ModelError(f"output_features: {', '.join(outputs) or 'none'}; expected action alone")
    check_inputs(inputs)
    tensors = read_weights(folder)
    pre: dict[str, pipeline.Step] = {}
    listed: frozenset[str] = frozenset()
    if (folder / pipeline.PRE).is_file() or (folder / pipeline.POST).is_file():
        pre, post = (pipeline.read_steps(folder / name) for name in (pipeline.PRE, pipeline.POST))
        listed = pipeline.listed(folder / pipeline.PRE)
        normalisation = from_steps(pre, post)
        check_scaled(inputs, normalisation, pre)
    else:
        tensors, normalisation = from_weights(
            tensors,
            config.get("normalization_mapping") or {},
            [*(feature.name for feature in inputs), ACTION],
            bool(statistics),
        )
    if statistics is not None:
        normalisation = Normalisation(normalisation.modes, normalisation.rule, statistics, statistics)
    names = renamed(inputs, pre)
    inputs = with_cameras(inputs, names, cameras, config["type"])
    check_names(inputs, names)
    check_frames(frames or {}, [names.get(feature.name, feature.name) for feature in inputs])
    return Checkpoint(
        folder=folder,
        policy_type=config["type"],
        config=config,
        inputs=inputs,
        action=outputs[ACTION],
        tensors=tensors,
        normalisation=normalisation,
        pre=pre,
        listed=listed,
        renamed=names,
        frames=frames or {},
        weights_sha256=digest(weight_files(folder)),
    )


def read_config(folder: Path) -> dict[str, Any]:
    """The policy's `config.json`, refused where it asks for what an export cannot give."""
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(f"{folder}: no config.json; expected a folder written by lerobot-train (…/pretrained_model)")
    try:
        config = files.read_json(path)
    except ValueError as error:
        raise ModelError(f"config.json: {error}") from error
    if not isinstance(config, dict) or config.get("type") not in TYPES:
        kind = config.get("type") if isinstance(config, dict) else None
        raise ModelError(f"config.json: policy type {kind} is not supported; expected {' or '.join(TYPES)}")
    if config.get("use_peft") or (folder / "adapter_config.json").is_file():
        raise ModelError("use_peft: the weights are an adapter; merge it into its base model and save that")
    if config["type"] != "diffusion" and config.get("n_obs_steps", 1) != 1:
        raise ModelError(
            f"n_obs_steps: {config['n_obs_steps']}; LeRobot's {config['type']} looks at one observation, expected 1"
        )
    for name in CHANGES_THE_PICTURE if config["type"] != "diffusion" else ():
        if config.get(name):
            raise ModelError(
                f"{name}: {json.dumps(config[name])} changes the picture, and LeRobot's {config['type']} has none"
            )
    if config.get("use_relative_actions"):
        raise ModelError("use_relative_actions: the policy predicts actions relative to the state; train without it")
    return config


def features(config: Mapping[str, Any], key: str) -> tuple[Feature, ...]:
    try:
        return tuple(
            Feature(name, entry["type"], tuple(int(size) for size in entry["shape"]))
            for name, entry in config[key].items()
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ModelError(f"config.json: {key} is not a table of features with type and shape") from error


def with_cameras(
    inputs: tuple[Feature, ...], names: Mapping[str, str], cameras: Sequence[str], kind: str
) -> tuple[Feature, ...]:
    """`inputs` without the cameras that are not among `cameras`. Raises ConfigError where that cannot be."""
    if not cameras:
        return inputs
    known = {names.get(each.name, each.name).removeprefix(IMAGES): each for each in inputs if each.type == "VISUAL"}
    for camera in cameras:
        if camera not in known:
            raise ConfigError(f"cameras: {camera} is not a camera of this policy ({', '.join(known) or 'it has none'})")
    left_out = [feature for camera, feature in known.items() if camera not in cameras]
    if left_out and kind not in MAY_LACK_CAMERAS:
        raise ConfigError(f"cameras: {kind} cannot do without {', '.join(set(known) - set(cameras))}; train it without")
    return tuple(feature for feature in inputs if feature not in left_out)


def check_inputs(inputs: tuple[Feature, ...]) -> None:
    for feature in inputs:
        expected = 3 if feature.type == "VISUAL" else 1
        if feature.type not in ("STATE", "ENV", "VISUAL") or len(feature.shape) != expected or min(feature.shape) < 1:
            raise ModelError(f"input_features: {feature.name} is {feature.type} of shape {list(feature.shape)}")
        if feature.type == "VISUAL" and feature.shape[0] != 3:
            raise ModelError(f"input_features: {feature.name} has {feature.shape[0]} channels, expected 3 (RGB)")
    if STATE not in {feature.name for feature in inputs}:
        raise ModelError(f"input_features: no {STATE}; a policy that does not look at the joints is not supported")


def check_scaled(inputs: tuple[Feature, ...], normalisation: Normalisation, pre: Mapping[str, pipeline.Step]) -> None:
    """A feature that LeRobot's normaliser does not list passes it raw, which cannot be intended."""
    listed = pre[pipeline.NORMALISE].config.get("features") or {}
    for feature in inputs:
        mode = normalisation.modes.get(feature.type, "IDENTITY")
        if mode != "IDENTITY" and feature.name not in listed:
            raise ModelError(
                f"{pipeline.NORMALISE}: {feature.name} is missing from its features, so its {mode} is void"
            )


def check_names(inputs: tuple[Feature, ...], names: Mapping[str, str]) -> None:
    """What the robot gives is asked for by the names that the wire has for it."""
    for feature in inputs:
        outside = names.get(feature.name, feature.name)
        if feature.type == "VISUAL" and outside.removeprefix(IMAGES) in ("", outside):
            raise ModelError(f"input_features: the camera {outside} has no name; expected {IMAGES}NAME")
        if (feature.name == STATE) != (outside == STATE):
            raise ModelError(f"rename_map: {feature.name} would be {outside}; expected {STATE} to keep its name")


def check_frames(frames: Sizes, names: list[str]) -> None:
    for camera in frames:
        if camera and IMAGES + camera not in names:
            cameras = ", ".join(name.removeprefix(IMAGES) for name in names if name.startswith(IMAGES))
            raise ConfigError(f"image_size: {camera} is not a camera of this policy ({cameras or 'it has none'})")


def renamed(inputs: tuple[Feature, ...], pre: Mapping[str, pipeline.Step]) -> dict[str, str]:
    """The policy's name -> the robot's name, from LeRobot's `rename_map` (robot's name -> policy's name)."""
    step = pre.get(pipeline.RENAME)
    forward: dict[str, str] = dict(step.config.get("rename_map") or {}) if step else {}
    backward = {new: old for old, new in forward.items()}
    outside = [backward.get(feature.name, feature.name) for feature in inputs]
    taken = [
        name for name, feature in zip(outside, inputs, strict=True) if forward.get(name, feature.name) != feature.name
    ]
    if len(backward) != len(forward) or len(set(outside)) != len(outside) or taken:
        raise ModelError(f"rename_map: {json.dumps(forward)} does not give every input of the policy a name of its own")
    return backward
