"""Task texts as LeRobot tokenised them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge_runtime.errors import ModelError
from policy_server.bundle import StateText
from policy_server.engines.tokens import Tokenizer, prompts

STATE = np.zeros((2, 6), np.float32)
CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"
TINY, PI05 = CHECKPOINTS / "smolvla_tiny", CHECKPOINTS / "pi05_text"


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


@pytest.fixture(scope="module")
def known() -> dict[str, np.ndarray]:
    """What LeRobot 0.6.1 made of three states, the last with joints beyond its statistics on both sides."""
    with np.load(PI05 / "reference.npz", allow_pickle=False) as stored:
        return dict(stored)


def state_text(known: dict[str, np.ndarray], numbers: int = 6) -> StateText:
    divisor = (known["q99"] - known["q01"]) / 2
    return StateText(known["q01"].tolist(), divisor.tolist(), [-1.0] * 6, numbers)


def test_pi05_reads_its_state_in_the_prompt_as_lerobot_wrote_it(known: dict[str, np.ndarray]) -> None:
    texts = prompts(known["task"], known["state"], state_text(known))
    tokens, mask = Tokenizer(PI05 / "tokenizer.json", 200)(texts, [200])
    np.testing.assert_array_equal(mask, known["token_mask"])
    np.testing.assert_array_equal(tokens[mask], known["tokens"][mask])
    assert texts[0].startswith("Task: pick up the red cube, State: ")
    assert " -1 255 " in texts[2] or " -1 255;" in texts[2] or ": -1 255" in texts[2]


def test_pi05_of_lerobot_0_4_has_32_numbers_in_its_prompt(known: dict[str, np.ndarray]) -> None:
    [text] = prompts(["go_there\nnow "], known["state"][:1], state_text(known, 32))
    numbers = text.removeprefix("Task: go there now, State: ").removesuffix(";\nAction: ").split(" ")
    assert len(numbers) == 32
    assert numbers[6:] == ["128"] * 26
