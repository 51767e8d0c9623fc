"""Any chunk policy of LeRobot, run by LeRobot itself: its `predict_action_chunk` between its own processors.

This is the one place outside the export that imports torch and LeRobot (0.6.1 was tried), and only when such a policy
is opened. Nothing is downloaded: what a checkpoint refers to has to be in the local Hugging Face cache.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_runtime.errors import ConfigError, ModelError
from edge_runtime.program import extras, files
from edge_runtime.wire.messages import Camera, ExtraState, Floats, Policy
from policy_server.bundle import ACTION, IMAGES, SEED, STATE, TASK, digests, features
from policy_server.engines import Batch, check_actions, checkpoint_folder
from policy_server.engines.flow import NOISE
from policy_server.engines.providers import Runtime
from policy_server.engines.stated import Stated

log = logging.getLogger(__name__)

TYPE = "lerobot"
PRE, POST = "policy_preprocessor.json", "policy_postprocessor.json"
ROWS = {"diffusion": "n_action_steps", "vqbet": "action_chunk_size"}  # the setting that says how many rows come back
READS_NO_TEXT = ("act", "diffusion", "vqbet", "tdmpc")


class LeRobotPolicy:
    """A checkpoint as `lerobot-train` writes it: what it says of itself, with what the user stated."""

    batched = True

    def __init__(self, name: str, stated: Stated, device: str = "auto") -> None:
        """`name` is its folder, or a hub id that is in the local cache.

        Raises UsageError when it is neither, ModelError when it holds no policy or would have LeRobot import what a
        file names, ConfigError when the joints do not fit it.
        """
        folder = checkpoint_folder.locate(name)
        self.path = str(folder)
        self.policy, self.n_obs_steps = _describe(folder, stated)
        self._files = digests(folder)
        told = json.dumps([repr(self.policy), self.n_obs_steps, [(n, d.sha256) for n, d in self._files.items()]])
        self.policy = replace(self.policy, digest=hashlib.sha256(told.encode()).digest())
        self._device = device

    def open(self, runtime: Runtime) -> LeRobotEngine:
        """What was loaded is what was read at first: raises ModelError when a file has changed since."""
        engine = LeRobotEngine(Path(self.path), self.policy, self.n_obs_steps, self._device)
        if digests(Path(self.path)) != self._files:
            raise ModelError(f"{self.path}: its files changed while they were loaded")
        return engine


def _describe(folder: Path, stated: Stated) -> tuple[Policy, int]:
    """The policy, without a digest, and how many observations it looks at."""
    config, renamed = _config(folder), _renamed(folder)
    inputs = {renamed.get(name, name): feature for name, feature in _features(config, "input_features").items()}
    outputs = _features(config, "output_features")
    if ACTION not in outputs or STATE not in inputs:
        raise ModelError(f"{folder / 'config.json'}: it takes no {STATE}, or gives no {ACTION}")
    for name, (_, shape) in ((STATE, inputs[STATE]), (ACTION, outputs[ACTION])):
        if shape != (len(stated.joints),):
            raise ConfigError(f"names: {len(stated.joints)} joints, but {name} of {folder.name} has the shape {shape}")
    rows = config.get(ROWS.get(config["type"], "chunk_size"), config.get("n_action_steps"))
    looks, ensembled = config.get("n_obs_steps", 1), config.get("temporal_ensemble_coeff") or 0.0
    if not isinstance(rows, int) or not isinstance(looks, int) or not isinstance(ensembled, int | float):
        raise ModelError(f"{folder / 'config.json'}: says neither chunk_size nor n_action_steps; is it a chunk policy?")
    policy = Policy(
        name=folder.resolve().name,
        type=TYPE,
        digest=b"",
        joints=stated.joints,
        cameras=tuple(
            Camera(name.removeprefix(IMAGES), *shape[1:])
            for name, (kind, shape) in inputs.items()
            if kind == "VISUAL" and "empty_camera" not in name
        ),
        extra_state=tuple(
            ExtraState(name, shape[0]) for name, (kind, shape) in inputs.items() if kind != "VISUAL" and name != STATE
        ),
        chunk_size=rows,
        fps=stated.fps,
        uses_task=config["type"] not in READS_NO_TEXT,
        temporal_ensemble_coeff=float(ensembled),
    )
    return policy, looks


class LeRobotEngine:
    """Runs a LeRobot policy on `device`. Where it cannot take several observations at once they go in one by one.

    A policy that starts from noise draws it after `torch.manual_seed` with the first member's seed, unless the batch
    holds `noise` and the policy takes it.
    """

    def __init__(self, path: Path, policy: Policy, observations: int, device: str) -> None:
        """Raises ConfigError when LeRobot or the device is not there, ModelError when it cannot load the checkpoint."""
        self._path, self._policy, self._observations = path, policy, observations
        self._features = features(policy, observations)
        self._batched = True
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when LeRobot is imported
        self._torch, lerobot = _import()
        self._device = device if device != "auto" else "cuda" if self._torch.cuda.is_available() else "cpu"
        try:
            self._torch.zeros(1, device=self._device)
        except Exception as error:  # torch's errors share no base of their own
            raise ConfigError(f"device: {self._device} cannot be had: {_first_line(error)}") from error
        try:
            config = lerobot.PreTrainedConfig.from_pretrained(path, local_files_only=True)
            config.device = self._device
            policy_class = lerobot.get_policy_class(config.type)
            self._lerobot = policy_class.from_pretrained(path, config=config, local_files_only=True)
            on = {"device_processor": {"device": self._device}}
            self._pre, self._post = lerobot.make_pre_post_processors(
                config, pretrained_path=str(path), preprocessor_overrides=on, postprocessor_overrides=on
            )
        except Exception as error:  # LeRobot's, draccus', huggingface_hub's, safetensors'
            raise ModelError(f"{path}: LeRobot cannot load it: {_first_line(error)}") from error
        takes = inspect.signature(self._lerobot.predict_action_chunk).parameters.values()
        self._takes_noise = any(each.name == NOISE or each.kind is each.VAR_KEYWORD for each in takes)
        self._populate_queues = lerobot.populate_queues

    @property
    def provider(self) -> str:
        return f"torch on {self._device}"

    def infer(self, batch: Batch) -> Floats:
        size = len(batch[STATE])
        if self._batched or size == 1:
            return self._infer(batch)
        singles = ({name: array[row : row + 1] for name, array in batch.items()} for row in range(size))
        return np.concatenate([self._infer(single) for single in singles])

    def warm_up(self, batch_sizes: Sequence[int], progress: Callable[[str], None]) -> None:
        """Run once in each batch size. Raises ModelError when the policy fails or gives another shape."""
        for size in batch_sizes:
            progress(f"batch of {size}")
            batch: dict[str, npt.NDArray[Any]] = {
                name: np.zeros((size, *feature.shape), feature.dtype) for name, feature in self._features.items()
            }
            batch |= {TASK: np.array([""] * size), SEED: np.zeros((size, 1), np.int64)}
            try:
                actions = self.infer(batch)
                check_actions(str(self._path), self._policy, size, actions)
            except Exception as error:  # whatever the policy raises
                if size == 1:
                    raise ModelError(f"{self._path}: LeRobot cannot run it: {_first_line(error)}") from error
                log.warning("%s takes one observation at a time: %s", self._policy.name, _first_line(error))
                self._batched = False
                return

    def _infer(self, batch: Batch) -> Floats:
        torch, policy = self._torch, self._lerobot
        noise = {}
        if NOISE in batch and self._takes_noise:
            noise[NOISE] = torch.from_numpy(batch[NOISE]).to(self._device)
        else:
            torch.manual_seed(int(batch[SEED][0][0]))
        with torch.no_grad():
            policy.reset()
            for index in range(self._observations):
                seen = self._remember(self._pre(self._raw(batch, index)))
            actions: Floats = self._post(policy.predict_action_chunk(seen, **noise)).float().cpu().numpy()
        return actions

    def _raw(self, batch: Batch, index: int) -> dict[str, Any]:
        """One of the last observations of each member, as LeRobot's pre-processor takes it."""
        raw: dict[str, Any] = {}
        for name in self._features:
            array = batch[name][:, index] if self._observations > 1 else batch[name]
            tensor = self._torch.from_numpy(np.ascontiguousarray(array))
            raw[name] = tensor.permute(0, 3, 1, 2).float() / 255 if name.startswith(IMAGES) else tensor
        if self._policy.uses_task:
            raw[TASK] = [str(task) for task in batch[TASK]]
        return raw

    def _remember(self, seen: dict[str, Any]) -> dict[str, Any]:
        """`seen` as the policy's `select_action` hands it on, and in its queues where it keeps observations there."""
        queues = getattr(self._lerobot, "_queues", None) or {}
        if set(queues) <= {ACTION}:
            return seen
        seen = {name: value for name, value in seen.items() if name != ACTION}
        if images := [seen[name] for name in self._lerobot.config.image_features]:
            seen["observation.images"] = self._torch.stack(images, dim=-4)
        self._lerobot._queues = self._populate_queues(queues, seen)
        return seen


class _Imported:
    """What is taken from LeRobot."""

    def __init__(self) -> None:
        from lerobot.configs import PreTrainedConfig
        from lerobot.policies.factory import get_policy_class, make_pre_post_processors
        from lerobot.policies.utils import populate_queues

        self.PreTrainedConfig: Any = PreTrainedConfig
        self.get_policy_class: Any = get_policy_class
        self.make_pre_post_processors: Any = make_pre_post_processors
        self.populate_queues: Any = populate_queues


def _import() -> tuple[Any, _Imported]:
    try:
        import torch

        return torch, _Imported()
    except ImportError as error:
        raise ConfigError(
            f"lerobot is not usable here ({error}): {extras.install('lerobot')}, on Python 3.12 or later"
        ) from error


def _config(folder: Path) -> dict[str, Any]:
    """The policy's `config.json`; every processor step must have a name that LeRobot registers.

    LeRobot imports the module that a step's `class` names, and no file may say which code is run.
    """
    config = _read(folder / "config.json")
    if not isinstance(config.get("type"), str):
        raise ModelError(f"{folder / 'config.json'}: names no policy type; expected a folder written by lerobot-train")
    for file in (PRE, POST):
        for step in _steps(folder / file):
            if not isinstance(step.get("registry_name"), str):
                raise ModelError(f"{folder / file}: a step has no registry_name, and code that a file names is not run")
    return config


def _renamed(folder: Path) -> dict[str, str]:
    """The policy's names of inputs -> the robot's."""
    renamed: dict[str, str] = {}
    for step in _steps(folder / PRE):
        if step.get("registry_name") == "rename_observations_processor":
            renamed |= {new: old for old, new in (step.get("config") or {}).get("rename_map", {}).items()}
    return renamed


def _features(config: Mapping[str, Any], key: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    try:
        return {name: (entry["type"], tuple(map(int, entry["shape"]))) for name, entry in config[key].items()}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ModelError(f"config.json: {key} is not a table of features with type and shape") from error


def _steps(path: Path) -> list[dict[str, Any]]:
    steps = _read(path).get("steps")
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise ModelError(f"{path}: is not a LeRobot processor file")
    return steps


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ModelError(f"{path}: is missing; expected a folder written by lerobot-train, LeRobot 0.4 or later")
    try:
        found = files.read_json(path)
    except ValueError as error:
        raise ModelError(f"{path}: {error}") from error
    if not isinstance(found, dict):
        raise ModelError(f"{path}: is {json.dumps(found)[:60]}, not an object")
    return found


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
