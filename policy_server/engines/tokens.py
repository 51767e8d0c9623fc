"""What a vision-language-action policy reads: the prompt it was trained with, made of the task, as tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_runtime.errors import ConfigError, ModelError
from edge_runtime.program import extras
from policy_server.bundle import StateText

BINS = np.linspace(-1, 1, 257)[:-1]


def prompts(tasks: Iterable[object], states: npt.NDArray[np.float32], state_text: StateText | None) -> list[str]:
    """The text of each task with LeRobot's newline behind it, or PI0.5's prompt with its state."""
    texts = [str(task) for task in tasks]
    if state_text is None:
        return [text if text.endswith("\n") else f"{text}\n" for text in texts]
    clean = [text.strip().replace("_", " ").replace("\n", " ") for text in texts]
    return [
        f"Task: {text}, State: {' '.join(map(str, numbers))};\nAction: "
        for text, numbers in zip(clean, binned(states, state_text), strict=True)
    ]


def binned(states: npt.NDArray[np.float32], told: StateText) -> npt.NDArray[np.int64]:
    """(texts, joints) raw states -> (texts, numbers) of -1..255, in float32 and in LeRobot's order."""
    centre, divisor, offset = (np.array(part, np.float32) for part in (told.centre, told.divisor, told.offset))
    normalised = np.zeros((len(states), told.numbers), np.float32)
    normalised[:, : states.shape[1]] = (states - centre) / divisor + offset
    return np.digitize(normalised, BINS) - 1


class Tokenizer:
    """The `tokenizer.json` of a bundle, at most `length` tokens of a text."""

    def __init__(self, path: Path, length: int) -> None:
        """Raises ConfigError when `tokenizers` is not installed, ModelError when the file cannot be read."""
        try:
            self._tokenizer: Any = import_tokenizers().Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            if isinstance(error, ConfigError):
                raise
            raise ModelError(f"{path.name}: tokenizers cannot read it: {error}") from error
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(length)
        self.length = length

    def __call__(
        self, texts: Sequence[str], widths: Sequence[int]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """(texts, width) tokens, padded on the right with 0, and True where they are not padding.

        The width is the least of `widths` that holds every text; the largest of them has to be `length` at least.
        """
        rows = [self._tokenizer.encode(text).ids for text in texts]
        width = min(width for width in widths if width >= max(map(len, rows)))
        tokens = np.zeros((len(rows), width), np.int64)
        mask = np.zeros((len(rows), width), np.bool_)
        for index, row in enumerate(rows):
            tokens[index, : len(row)] = row
            mask[index, : len(row)] = True
        return tokens, mask

    def id_of(self, token: str) -> int | None:
        """The id of a token by its text; None when the vocabulary lacks it."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    @property
    def vocabulary(self) -> int:
        return int(self._tokenizer.get_vocab_size())


def import_tokenizers() -> ModuleType:
    """The tokenizers package, which only language policies need. Raises ConfigError."""
    try:
        import tokenizers
    except ImportError as error:
        raise ConfigError(f"tokenizers is not usable here ({error}): {extras.install('server')}") from error
    return tokenizers
