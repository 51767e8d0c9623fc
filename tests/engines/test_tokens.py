"""Task texts as LeRobot tokenised them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge_runtime.errors import ModelError
from policy_server.engines.tokens import Tokenizer, prompts

STATE = np.zeros((2, 6), np.float32)
TINY = Path(__file__).parents[1] / "checkpoints" / "smolvla_tiny"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(TINY / "vlm" / "tokenizer.json", 48)


def test_gives_lerobots_tokens_padded_on_the_right(tokenizer: Tokenizer) -> None:
    with np.load(TINY / "reference.npz", allow_pickle=False) as reference:
        text, expected = str(reference["task"]), reference["tokens"][0]
    tokens, mask = tokenizer(prompts([text], STATE, None), [48])
    assert tokens.shape == mask.shape == (1, 48)
    np.testing.assert_array_equal(tokens[0, : len(expected)], expected)
    assert mask.sum() == len(expected)
    assert not tokens[~mask].any()


def test_the_longest_text_chooses_the_width(tokenizer: Tokenizer) -> None:
    _, mask = tokenizer(["go", "pick up the red cube"], range(1, 49))
    longest = mask.shape[1]
    assert longest == mask[1].sum() > mask[0].sum() > 0
    assert tokenizer(["go", "pick up the red cube"], [longest - 1, longest + 3, 48])[0].shape == (2, longest + 3)


def test_long_texts_are_cut(tokenizer: Tokenizer) -> None:
    _, mask = tokenizer(["pick up the red cube " * 50], range(1, 49))
    assert mask.shape == (1, 48)


def test_the_newline_is_added_once(tokenizer: Tokenizer) -> None:
    tokens, _ = tokenizer(prompts(["go", "go\n"], STATE, None), [48])
    np.testing.assert_array_equal(tokens[0], tokens[1])


def test_an_empty_text_is_a_newline(tokenizer: Tokenizer) -> None:
    assert tokenizer(prompts([""], STATE, None), [48])[1].sum() >= 1


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json: tokenizers cannot read it"):
        Tokenizer(tmp_path / "tokenizer.json", 48)
