"""Stored pairs of observation and actions: what LeRobot itself answered, to hold an export against."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edge_runtime.errors import ModelError
from policy_server.export.checkpoint import IMAGES, STATE, Feature
from policy_server.export.parity import Array, Floats


@dataclass(frozen=True)
class Reference:
    """Raw inputs by the policy's feature names and the (B, chunk, joints) actions in joint units that belong to them."""

    name: str
    inputs: dict[str, Array]
    actions: Floats


def find(folder: Path) -> Path | None:
    """`reference.npz` in the checkpoint's folder or beside it."""
    return next((path for path in (folder / "reference.npz", folder.parent / "reference.npz") if path.is_file()), None)


def read(path: Path, features: Sequence[Feature]) -> Reference:
    """A stored pair for `features`, batched if need be. Raises ModelError when it does not fit them."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ModelError(f"{path.name}: not a stored reference ({error})") from error
    inputs: dict[str, Array] = {}
    for feature in features:
        short = "state" if feature.name == STATE else f"image_{feature.name.removeprefix(IMAGES)}"
        if feature.name in arrays:
            inputs[feature.name] = arrays[feature.name]
        elif short in arrays:
            inputs[feature.name] = arrays[short][None]
        else:
            raise ModelError(f"{path.name}: {feature.name} is missing; it belongs to another policy")
    if "actions" not in arrays:
        raise ModelError(f"{path.name}: actions is missing; expected LeRobot's output in joint units")
    return Reference(path.name, inputs, arrays["actions"])
