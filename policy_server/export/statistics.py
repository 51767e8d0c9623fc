"""Where each LeRobot release keeps the normalisation statistics of a policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from edge_runtime.errors import ModelError
from policy_server.export.normalisation import Rule, Statistics
from policy_server.export.pipeline import Step
from policy_server.export.weights import read_tensors


@dataclass(frozen=True)
class Normalisation:
    """How inputs and actions are scaled: modes by feature type (`STATE`, `VISUAL`, …), statistics by feature."""

    modes: Mapping[str, str]
    rule: Rule
    inputs: Statistics
    outputs: Statistics


def from_steps(pre: Mapping[str, Step], post: Mapping[str, Step]) -> Normalisation:
    """LeRobot 0.4 and later: a file for each of the two steps. Raises ModelError when a step or its file is missing."""
    steps = (required(pre, "normalizer_processor"), required(post, "unnormalizer_processor"))
    for step in steps:
        if step.config.get("normalize_observation_keys") is not None:
            raise ModelError(f"{step.name}: normalize_observation_keys is not supported; save the policy without it")
    modes = steps[0].config.get("norm_map") or {}
    if steps[1].config.get("norm_map", modes).get("ACTION") != modes.get("ACTION"):
        raise ModelError("norm_map: the pre- and the post-processor name different modes for ACTION")
    inputs, outputs = (statistics_of(step) for step in steps)
    return Normalisation(modes, Rule(eps=float(steps[0].config.get("eps", 1e-8))), inputs, outputs)


def required(steps: Mapping[str, Step], name: str) -> Step:
    if name not in steps:
        raise ModelError(f"{name}: the step is missing from the policy's processors; expected one")
    return steps[name]


def statistics_of(step: Step) -> Statistics:
    """The numbers in a step's own file; none when it names no file."""
    if step.state_file is None:
        return {}
    if not step.state_file.is_file():
        raise ModelError(f"{step.state_file.name}: the statistics that {step.name} names are missing")
    return by_feature(read_tensors(step.state_file))


def by_feature(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, np.ndarray]]:
    """`observation.state.mean` -> {"observation.state": {"mean": …}}, in double."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for key, tensor in tensors.items():
        feature, _, name = key.rpartition(".")
        found.setdefault(feature, {})[name] = tensor.double().numpy()
    return found


def folder_statistics(folder: Path) -> list[Path]:
    """The statistics files a checkpoint folder holds beside its weights."""
    return sorted(folder.glob("policy_*processor*.safetensors"))
