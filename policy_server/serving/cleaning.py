"""From what a robot sends to what an engine takes, in three steps: match keys, preprocess, prepare. Pure functions.

1. `match_keys`, once at the handshake: where each thing goes, by name.
2. `preprocess`, for each observation, on its session's thread: decode frames, check shapes and finiteness.
3. `prepare`, for each batch, on the engine's thread: stack. All shapes are the bundle's, so batches always stack.

Nothing here scales or converts: normalisation is in the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_runtime.errors import ProtocolError
from edge_runtime.wire.fit import differences
from edge_runtime.wire.frames import pixels
from edge_runtime.wire.messages import Hello, Observation, Policy
from policy_server.bundle import IMAGES, SEED, STATE, TASK, Feature, features

Inputs = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class KeyMap:
    """What a policy takes, by feature name, and the names under which this robot sends it."""

    features: Mapping[str, Feature]
    cameras: Mapping[str, str]  # the camera's name -> the feature's
    uses_task: bool


def match_keys(hello: Hello, policy: Policy) -> KeyMap:
    """Raises ProtocolError with every difference between robot and policy in one sentence."""
    found = differences(hello, policy)
    if found:
        raise ProtocolError(f"this robot does not fit policy {policy.name}: {'; '.join(found)}")
    return KeyMap(
        features=features(policy),
        cameras={camera.name: IMAGES + camera.name for camera in policy.cameras},
        uses_task=policy.uses_task,
    )


def preprocess(observation: Observation, keys: KeyMap) -> Inputs:
    """Feature name -> array without the batch dimension. Raises ProtocolError for what is damaged or does not fit."""
    inputs: dict[str, npt.NDArray[Any]] = {STATE: observation.state, **observation.extra_state}
    for frame in observation.frames:
        inputs[keys.cameras.get(frame.camera, frame.camera)] = pixels(frame)
    if inputs.keys() != keys.features.keys():
        raise ProtocolError(f"observation has {sorted(inputs)}, the policy takes {sorted(keys.features)}")
    for name, feature in keys.features.items():
        array = inputs[name]
        if array.shape != feature.shape or array.dtype != feature.dtype:
            raise ProtocolError(
                f"{name}: {array.dtype} {array.shape}, the policy takes {feature.dtype} {feature.shape}"
            )
        if feature.dtype.kind == "f" and not np.isfinite(array).all():
            raise ProtocolError(f"{name}: has a number that is not finite")
    if keys.uses_task:
        inputs[TASK] = np.array(observation.task)
    # Some policies start from noise: drawn by the timestep, a run can be repeated bit for bit.
    inputs[SEED] = np.array([observation.timestep])
    return inputs


def prepare(members: Sequence[Inputs]) -> dict[str, npt.NDArray[Any]]:
    """Feature name -> array, batch first; a batch of one is a view."""
    if len(members) == 1:
        return {name: array[np.newaxis] for name, array in members[0].items()}
    return {name: np.stack([member[name] for member in members]) for name in members[0]}
