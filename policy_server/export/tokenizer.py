"""Where the tokenizer of a language policy is: in the checkpoint, in a folder the user names, or in the local cache."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from edge_runtime.errors import ConfigError, ModelError
from policy_server.engines.hub import cached
from policy_server.export.checkpoint import Checkpoint
from policy_server.export.pipeline import NEWLINES, STATE_IN_TEXT, TOKENIZE

FILE = "tokenizer.json"
PUBLISHED = {"pi0": "google/paligemma-3b-pt-224", "pi05": "google/paligemma-3b-pt-224"}  # fixed in LeRobot's code
MARKERS = ("<fake_token_around_image>", "<global-img>")


def folders(checkpoint: Checkpoint, stated: Path | None) -> list[Path]:
    """Where to look for the language model's files, best first. Raises ConfigError when `stated` is no such folder."""
    if stated is not None:
        if not (stated / FILE).is_file():
            raise ConfigError(f"tokenizer: {stated} holds no {FILE}; expected the folder of the language model")
        return [stated]
    step = checkpoint.pre.get(TOKENIZE)
    names = [name_of(checkpoint), step.config.get("tokenizer_name") if step else None]
    inside = [checkpoint.folder / path for path in texts(step.artifacts if step else {})]
    found = [path if path.is_dir() else path.parent for path in inside]
    found += [folder for name in names if name and (folder := cached(name))]
    return list(dict.fromkeys(found))


def locate(checkpoint: Checkpoint, places: Iterable[Path]) -> Path:
    """The `tokenizer.json` in the first of `places` that has one. Raises ConfigError when none has."""
    for folder in places:
        if (folder / FILE).is_file():
            return folder / FILE
    raise ConfigError(
        f"tokenizer: {FILE} of {name_of(checkpoint)} is neither in the checkpoint nor in the Hugging Face cache; "
        f"give --tokenizer DIR"
    )


def name_of(checkpoint: Checkpoint) -> str | None:
    """What the language model is called where it was published."""
    return checkpoint.config.get("vlm_model_name") or PUBLISHED.get(checkpoint.policy_type)


def max_tokens(checkpoint: Checkpoint) -> int:
    """How many tokens of the task's text are used. Raises ModelError when LeRobot tokenised in a way that we do not."""
    step = checkpoint.pre.get(TOKENIZE)
    if not checkpoint.pre:  # up to 0.3 the policy itself tokenised, always in this way
        return checkpoint.setting("tokenizer_max_length", int)
    before = {"smolvla": NEWLINES[0], "pi0": NEWLINES[1], "pi05": STATE_IN_TEXT}[checkpoint.policy_type]
    if step is None or before not in checkpoint.pre:
        raise ModelError(
            f"policy_preprocessor.json: no {TOKENIZE} with {before} before it; expected both, as LeRobot saves"
        )
    for name, expected in (("padding_side", "right"), ("truncation", True), ("task_key", "task")):
        if step.config.get(name, expected) != expected:
            raise ModelError(f"{TOKENIZE}: {name} is {step.config[name]}, expected {expected}")
    length = step.config.get("max_length", 512)
    if not isinstance(length, int) or length < 1:
        raise ModelError(f"{TOKENIZE}: max_length is {length}, expected a number of tokens")
    return length


def texts(value: Any) -> list[str]:
    """Every text inside a JSON value: releases differ in how they list a step's artifacts."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in inner for text in texts(item)]
