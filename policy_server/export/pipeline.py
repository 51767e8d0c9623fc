"""The processor steps that LeRobot 0.4 and later stores beside a policy, and which of them we know."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edge_runtime.errors import ModelError

PRE, POST = "policy_preprocessor.json", "policy_postprocessor.json"
KNOWN = {  # in the order in which LeRobot chains them; another order would mean another computation
    PRE: (
        "rename_observations_processor",
        "to_batch_processor",
        "smolvla_new_line_processor",
        "tokenizer_processor",
        "device_processor",
        "normalizer_processor",
    ),
    POST: ("unnormalizer_processor", "device_processor"),
}
WHY = {
    "relative_actions_processor": "the policy predicts actions relative to the state",
    "absolute_actions_processor": "the policy predicts actions relative to the state",
    "delta_action_processor": "the policy predicts deltas, not joint targets",
    "map_delta_action_to_robot_action": "the policy predicts deltas, not joint targets",
}


@dataclass(frozen=True)
class Step:
    """One processor: its registry name, its configuration, the file of its tensors and the folders it refers to."""

    name: str
    config: Mapping[str, Any]
    state_file: Path | None = None
    artifacts: Mapping[str, Any] = field(default_factory=dict)


def read_steps(path: Path) -> dict[str, Step]:
    """The steps of a processor file by name. Raises ModelError on one that we do not know, or in another order."""
    steps: dict[str, Step] = {}
    try:
        entries = json.loads(path.read_text())["steps"]
        for entry in entries:
            name = entry.get("registry_name") or entry["class"]
            state = entry.get("state_file")
            state_file = path.parent / Path(state).name if state else None
            steps[name] = Step(name, entry.get("config") or {}, state_file, entry.get("artifacts") or {})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path.name}: not a LeRobot processor file ({type(error).__name__}: {error})") from error
    known = KNOWN[path.name]
    for name in steps:
        if name not in known:
            why = WHY.get(name, "it would change the policy's inputs or outputs")
            raise ModelError(f"{path.name}: the step {name} is not supported: {why}; train or save without it")
    order = [known.index(name) for name in steps]
    if order != sorted(order) or len(steps) != len(entries):
        raise ModelError(f"{path.name}: steps {', '.join(steps)}; expected each once, in the order {', '.join(known)}")
    dtype = steps["device_processor"].config.get("float_dtype") if "device_processor" in steps else None
    if dtype not in (None, "float32"):
        raise ModelError(f"{path.name}: float_dtype {dtype} rounds the inputs; expected float32 or null")
    return steps
