"""Every flag and key of every word, from the classes themselves: unknown, missing, or of the wrong type."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml

from edge_runtime import cli as edge_runtime_cli
from edge_runtime.program import schema
from policy_server import cli as policy_server_cli
from tests.bad_input.conftest import Answer
from tests.bad_input.programs import WORDS, Setting, Word, settings

SETTINGS = list(settings())


def label(setting: Setting) -> str:
    return f"{setting.word} {setting.name}"


def test_every_word_is_here() -> None:
    words = {f"edge-runtime {word}" for word in edge_runtime_cli.WORDS}
    words |= {f"policy-server {word}" for word in policy_server_cli.WORDS}
    assert words | {"export-onnx"} == WORDS.keys()


@pytest.mark.parametrize("word", WORDS)
def test_every_word_has_debug_and_help(word: str) -> None:
    assert schema.find(WORDS[word].settings, ["debug"]) is bool
    assert WORDS[word].settings.__doc__


# Unknown.


def slip(name: str) -> str:
    """`name` with its last letter twice."""
    return name + name[-1]


@pytest.mark.parametrize("setting", SETTINGS, ids=label)
def test_an_unknown_flag_names_the_one_that_was_meant(answer: Answer, setting: Setting) -> None:
    flag = slip(setting.flag)
    code, said = answer(setting.word, *WORDS[setting.word].fitting, *setting.context, f"--{flag}=1")
    assert code == 64
    assert said == f"unknown flag --{flag}; did you mean --{setting.name}?"


@pytest.mark.parametrize("setting", [s for s in SETTINGS if WORDS[s.word].reads_files], ids=label)
def test_an_unknown_key_of_the_file_names_the_one_that_was_meant(
    answer: Answer, tmp_path: Path, setting: Setting
) -> None:
    key = slip(setting.flag)
    file = tmp_path / "config.yaml"
    file.write_text(nested(key, 1))
    code, said = answer(setting.word, *WORDS[setting.word].fitting, *setting.context, f"--config_path={file}")
    assert code == 78
    if setting.name == "robot.cameras.NAME.type":  # without its type nothing else of it is known
        assert said.startswith(f"{setting.flag}: is missing, expected one of opencv")
    else:
        assert said.startswith(f"{key}: no such setting")
        assert said.endswith(f"did you mean {setting.flag}?")


@pytest.mark.parametrize("word", ["edge-runtime", "policy-server"])
def test_an_unknown_word(answer: Answer, word: str) -> None:
    assert answer(f"{word} strat") == (64, "no word 'strat': did you mean start?")
    assert answer(f"{word} xyz")[1].startswith("no word 'xyz': expected one of start, ")


# Missing.


def required(word: Word) -> list[str]:
    return [s.name for s in schema.settings(word.settings) if s.default == schema.REQUIRED and "NAME" not in s.name]


@pytest.mark.parametrize("word", [word for word in WORDS if required(WORDS[word])])
def test_what_is_required_is_missed(answer: Answer, word: str) -> None:
    (name,) = required(WORDS[word])
    code, said = answer(word)
    assert code == (64 if "." not in name else 78)  # a word that is missing, or a setting
    assert said.startswith((f"{name} is missing: {word} {name.upper()}", f"{name}: is missing, expected one of "))


@pytest.mark.parametrize("setting", [setting for setting in SETTINGS if setting.name != "debug"], ids=label)
def test_a_flag_without_its_value(answer: Answer, setting: Setting) -> None:
    code, said = answer(setting.word, *WORDS[setting.word].fitting, *setting.context, f"--{setting.flag}", "--no-such")
    assert code == 64
    bare = bool in schema.members(setting.kind)  # true by itself
    assert said.startswith("unknown flag --no-such" if bare else f"--{setting.flag}: a value is missing, expected ")


# Of the wrong type.

WRONG: dict[Any, tuple[Any, ...]] = {
    bool: ("maybe", 2, [True], None),
    int: ("many", 1.5, True, {}, None),
    float: ("fast", True, [1], float("nan"), float("inf"), None),
    str: (["a"], {"a": 1}, True, None),
    Path: (["a"], {}, 5, "", None),
    dict: (5, ["a"], "text", None),
    list: (5, {"a": 1}, "text", None),
    Literal: ("sometimes", [], True, 1.5, None),
}


def wrong_values(setting: Setting) -> list[Any]:
    """What none of the types of `setting` takes."""
    members = schema.members(setting.kind)
    kinds = [get_origin(member) or member for member in members]
    values = {repr(value): value for kind in kinds for value in WRONG.get(kind, ())}
    return [value for value in values.values() if not any(takes(member, value) for member in members)]


def takes(member: Any, value: Any) -> bool:
    """Whether one of the alternatives takes what is wrong for another."""
    kind = get_origin(member) or member
    number = isinstance(value, int | float) and not isinstance(value, bool)
    text_of_a_number = value in ("2", "5")
    return {
        type(None): value is None,
        str: isinstance(value, str) or number,
        float: (number and abs(value) < 1e9) or text_of_a_number,
        int: (number and isinstance(value, int)) or text_of_a_number,
        bool: isinstance(value, bool),
        dict: value == {} or (isinstance(value, dict) and get_args(member)[1:] == (str,)),
        list: value == [] or (isinstance(value, list) and get_args(member) == (str,)),
        Path: isinstance(value, str) and bool(value),
        Literal: value in get_args(member) and not isinstance(value, bool),
    }[kind]


@pytest.mark.parametrize("setting", [setting for setting in SETTINGS if WORDS[setting.word].reads_files], ids=label)
def test_a_value_of_the_wrong_type(answer: Answer, tmp_path: Path, setting: Setting) -> None:
    values = wrong_values(setting)
    assert values
    file = tmp_path / "config.yaml"
    for value in values:
        file.write_text(nested(setting.flag, value))
        fitting = WORDS[setting.word].without(setting.flag)
        code, said = answer(setting.word, *fitting, *setting.context, f"--config_path={file}")
        assert code == 78
        assert said.startswith(f"{setting.flag}")
        assert value is None or schema.shown(value) in said
        assert schema.expected(setting.kind).removeprefix("one of ").split(",")[0] in said


def nested(name: str, value: Any) -> str:
    """YAML in which the setting `name` has this value."""
    for key in reversed(name.split(".")):
        value = {key: value}
    return yaml.safe_dump(value)
