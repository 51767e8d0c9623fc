"""Stored pairs of observation and actions: what LeRobot itself answered, to hold an export against."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edge_runtime.errors import ModelError
from edge_runtime.wire.messages import Floats
from policy_server.bundle import IMAGES, STATE, TASK
from policy_server.engines.flow import NOISE, PREVIOUS, STEP_NOISE, WEIGHTS
from policy_server.engines.guidance import weights
from policy_server.export.checkpoint import Checkpoint
from policy_server.export.parity import Array, Observation
from policy_server.export.policies import Policy

GUIDED = re.compile(r"actions_(?P<schedule>zeros|ones|linear|exp)_delay(?P<delay>\d+)_horizon(?P<horizon>\d+)$")


@dataclass(frozen=True)
class Reference:
    """Engine inputs, batch first, and LeRobot's (B, chunk, joints) actions in joint units that belong to them."""

    name: str
    observation: Observation
    actions: Floats


def find(checkpoint: Checkpoint, policy: Policy) -> Iterator[Reference]:
    """The pairs stored in the checkpoint's folder or beside it. Raises ModelError when they are another policy's."""
    if checkpoint.frames:  # they hold frames of the size that the checkpoint says
        return
    for folder in (checkpoint.folder, checkpoint.folder.parent):
        if (path := folder / "reference.npz").is_file():
            plain = read(path, checkpoint, policy)
            yield plain
            if (guided := folder / "reference_rtc.npz").is_file():
                yield from read_guided(guided, plain.observation)
            return


def read(path: Path, checkpoint: Checkpoint, policy: Policy) -> Reference:
    """A stored observation, under the policy's feature names or their short ones, and its `actions`."""
    arrays = stored(path)
    inputs: dict[str, Array] = {}
    for feature in policy.features:
        short = "state" if feature.name == STATE else f"image_{feature.name.removeprefix(IMAGES)}"
        array = arrays[feature.name] if feature.name in arrays else entry(path, arrays, short)
        if array.ndim == len(feature.shape):  # one observation by itself
            array = array[None]
        frame = (*checkpoint.frame(feature), 3) if feature.type == "VISUAL" else feature.shape
        if policy.observations > 1:
            frame = (policy.observations, *frame)
        elif array.shape[1:] == (1, *frame):
            array = array[:, 0]
        if array.shape[1:] != frame:
            raise ModelError(f"{path.name}: {feature.name} is {list(array.shape[1:])}, the policy takes {list(frame)}")
        inputs[checkpoint.outside(feature)] = array
    if policy.uses_task:
        inputs[TASK] = np.atleast_1d(entry(path, arrays, TASK))
    if policy.steps:
        inputs[NOISE] = entry(path, arrays, NOISE)
    if STEP_NOISE in arrays:  # of every step but the last, which adds none
        steps = np.moveaxis(arrays[STEP_NOISE], 0, 1)
        inputs[STEP_NOISE] = np.concatenate((steps, np.zeros_like(steps[:, :1])), 1)
    return Reference(path.name, inputs, entry(path, arrays, "actions"))


def read_guided(path: Path, observation: Observation) -> Iterator[Reference]:
    """LeRobot's guided real-time chunking on the same observation: each schedule, delay and horizon that is stored."""
    arrays = stored(path)
    left = entry(path, arrays, "left_over")
    for name, actions in arrays.items():
        if match := GUIDED.match(name):
            rows = actions.shape[1]
            previous = np.zeros((1, rows, left.shape[1]), np.float32)
            previous[0, : len(left)] = left
            held = weights(match["schedule"], int(match["delay"]), int(match["horizon"]), rows)  # type: ignore[arg-type]
            guidance = {NOISE: entry(path, arrays, NOISE), PREVIOUS: previous, WEIGHTS: held[None]}
            first = {name: array[:1] for name, array in observation.items()}
            yield Reference(f"{path.name} {name.removeprefix('actions_')}", {**first, **guidance}, actions)


def stored(path: Path) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ModelError(f"{path.name}: not a stored reference ({error})") from error


def entry(path: Path, arrays: Mapping[str, Any], name: str) -> Any:
    if name not in arrays:
        raise ModelError(f"{path.name}: {name} is missing; it belongs to another policy")
    return arrays[name]
