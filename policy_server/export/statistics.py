"""Where each LeRobot release keeps the normalisation statistics of a policy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from edge_runtime.errors import ConfigError, ModelError
from edge_runtime.program import files
from policy_server.export.normalisation import Doubles, Rule, Statistics
from policy_server.export.pipeline import NORMALISE, UNNORMALISE, Step
from policy_server.export.weights import read_tensors

BUFFER = re.compile(
    r"(?P<module>normalize_inputs|normalize_targets|unnormalize_outputs)\."
    r"(?:(?P<set>.+?)[._])?buffer[._](?P<feature>.+)\.(?P<statistic>mean|std|min|max)$"
)


@dataclass(frozen=True)
class Normalisation:
    """How inputs and actions are scaled: modes by feature type (`STATE`, `VISUAL`, …), statistics by feature."""

    modes: Mapping[str, str]
    rule: Rule
    inputs: Statistics
    outputs: Statistics


def from_steps(pre: Mapping[str, Step], post: Mapping[str, Step]) -> Normalisation:
    """LeRobot 0.4 and later: a file for each of the two steps. Raises ModelError when a step or its file is missing."""
    steps = []
    for found, name in ((pre, NORMALISE), (post, UNNORMALISE)):
        if name not in found:
            raise ModelError(f"{name}: the step is missing from the policy's processors; expected one")
        steps.append(found[name])
    if steps[0].config.get("normalize_observation_keys") is not None:
        raise ModelError(f"{NORMALISE}: normalize_observation_keys is not supported; save the policy without it")
    modes = steps[0].config.get("norm_map") or {}
    if (other := steps[1].config.get("norm_map", modes)).get("ACTION") != modes.get("ACTION"):
        raise ModelError(
            f"norm_map: ACTION is {modes.get('ACTION')} before the policy and {other.get('ACTION')} after it"
        )
    inputs, outputs = (of_step(step) for step in steps)
    return Normalisation(modes, Rule(eps=float(steps[0].config.get("eps", 1e-8))), inputs, outputs)


def of_step(step: Step) -> Statistics:
    """The numbers in a step's own file; none when it names no file."""
    if step.state_file is None:
        return {}
    if not step.state_file.is_file():
        raise ModelError(f"{step.state_file.name}: the statistics that {step.name} names are missing")
    return by_feature({name: tensor.double().numpy() for name, tensor in read_tensors(step.state_file).items()})


def by_feature(arrays: Mapping[str, Doubles]) -> dict[str, dict[str, Doubles]]:
    """`observation.state.mean` -> {"observation.state": {"mean": …}}."""
    found: dict[str, dict[str, Doubles]] = {}
    for key, array in arrays.items():
        feature, _, name = key.rpartition(".")
        found.setdefault(feature, {})[name] = array
    return found


def from_weights(
    tensors: Mapping[str, Tensor], modes: Mapping[str, str], features: Iterable[str], replaced: bool
) -> tuple[dict[str, Tensor], Normalisation]:
    """LeRobot up to 0.3: statistics among the weights. Returns the other tensors, and them.

    A SmolVLA may hold the statistics of several data sets, each behind its name. Raises ModelError unless there is one
    set, or what it says is `replaced` anyway.
    """
    long = {name.replace(".", "_"): name for name in features}  # a way back from `_` would be a guess
    weights: dict[str, Tensor] = {}
    sets: dict[str, dict[str, dict[str, dict[str, Doubles]]]] = {}
    for key, tensor in tensors.items():
        if (match := BUFFER.match(key)) is None:
            weights[key] = tensor
        elif (feature := match["feature"].replace(".", "_")) in long:
            modules = sets.setdefault(match["set"] or "", {})
            statistics = modules.setdefault(match["module"], {}).setdefault(long[feature], {})
            statistics[match["statistic"]] = tensor.double().numpy()
    if len(sets) > 1 and not replaced:
        names = ", ".join(sorted(name or "one without a name" for name in sets))
        raise ModelError(
            f"model.safetensors: statistics of several data sets ({names}); give the right ones with --stats"
        )
    chosen = next(iter(sets.values()), {})
    rule = Rule(widen_every_range=True)
    inputs, outputs = (chosen.get(module, {}) for module in ("normalize_inputs", "unnormalize_outputs"))
    return weights, Normalisation(modes, rule, inputs, outputs)


def from_file(path: Path) -> Statistics:
    """What the user gives: a data set's `meta/stats.json`, or a processor's safetensors. Raises ConfigError."""
    if not path.is_file():
        raise ConfigError(f"stats: {path} is not a file; expected a data set's meta/stats.json, or safetensors")
    if path.suffix == ".safetensors":
        return by_feature({name: tensor.double().numpy() for name, tensor in read_tensors(path).items()})
    try:
        stored: dict[str, dict[str, Any]] = files.read_json(path)
        return {
            feature: {name: np.asarray(values, dtype=np.float64).reshape(-1) for name, values in statistics.items()}
            for feature, statistics in stored.items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"stats: {path.name} is not a table of features with their statistics ({error})") from error
