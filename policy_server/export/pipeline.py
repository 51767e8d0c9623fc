"""The processor steps that LeRobot 0.4 and later stores beside a policy, and which of them we know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_runtime.errors import ModelError
from edge_runtime.program import files

PRE, POST = "policy_preprocessor.json", "policy_postprocessor.json"
RENAME, NORMALISE, UNNORMALISE = "rename_observations_processor", "normalizer_processor", "unnormalizer_processor"
TOKENIZE = "tokenizer_processor"
NEWLINES = ("smolvla_new_line_processor", "pi0_new_line_processor")
STATE_IN_TEXT = "pi05_prepare_state_tokenizer_processor_step"
RELATIVE = "relative_actions_processor"
KNOWN = {
    PRE: (
        RENAME,
        "to_batch_processor",
        *NEWLINES,
        STATE_IN_TEXT,
        TOKENIZE,
        "device_processor",
        NORMALISE,
    ),
    POST: (UNNORMALISE, "device_processor"),
}
BEFORE = (  # else they compute otherwise
    (RENAME, NORMALISE),
    *((name, TOKENIZE) for name in NEWLINES),
    (NORMALISE, STATE_IN_TEXT),
    (STATE_IN_TEXT, TOKENIZE),
)
WHY = {
    RELATIVE: "the policy predicts actions relative to the state",
    "absolute_actions_processor": "the policy predicts actions relative to the state",
    "delta_action_processor": "the policy predicts deltas, not joint targets",
    "map_delta_action_to_robot_action": "the policy predicts deltas, not joint targets",
}


@dataclass(frozen=True)
class Step:
    """One processor: its registry name, its configuration, the file of its tensors, the files it refers to."""

    name: str
    config: Mapping[str, Any]
    state_file: Path | None
    artifacts: Any


def read_steps(path: Path) -> dict[str, Step]:
    """The steps of a processor file by name, without those switched off.

    Raises ModelError on one that we do not know, that comes twice, or that comes in an order we do not know.
    """
    try:
        entries = [step_of(entry, path.parent) for entry in files.read_json(path)["steps"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path.name}: not a LeRobot processor file ({type(error).__name__}: {error})") from error
    entries = [step for step in entries if step.config.get("enabled") is not False]
    names = [step.name for step in entries]
    for name in names:
        if name not in KNOWN[path.name]:
            why = WHY.get(name, "it would change the policy's inputs or outputs")
            raise ModelError(f"{path.name}: the step {name} is not supported: {why}; train or save without it")
        if names.count(name) > 1:
            raise ModelError(f"{path.name}: the step {name} comes {names.count(name)} times; expected once")
    for first, second in BEFORE:
        if first in names and second in names and names.index(first) > names.index(second):
            raise ModelError(f"{path.name}: {second} comes before {first}; expected it after")
    steps = dict(zip(names, entries, strict=True))
    dtype = steps["device_processor"].config.get("float_dtype") if "device_processor" in steps else None
    if dtype not in (None, "float32"):
        raise ModelError(f"{path.name}: float_dtype {dtype} rounds the inputs; expected float32 or null")
    return steps


def listed(path: Path) -> frozenset[str]:
    """The names of all steps of a processor file, those switched off too: they tell the release that wrote it."""
    return frozenset(step_of(entry, path.parent).name for entry in files.read_json(path)["steps"])


def step_of(entry: Mapping[str, Any], folder: Path) -> Step:
    state = entry.get("state_file")
    return Step(
        name=entry.get("registry_name") or entry["class"],
        config=entry.get("config") or {},
        state_file=folder / Path(state).name if state else None,
        artifacts=entry.get("artifacts"),
    )
