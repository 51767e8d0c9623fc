"""Command lines and YAML files to configuration dataclasses; every mistake is one line.

`--robot.port=/dev/ttyACM0 --dry_run --config_path=run.yaml`: a flag wins over the file, the file over the default.
The language is that of draccus, which LeRobot uses; `schema` says what each field takes.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import inspect
import signal
import sys
import traceback
import types
import typing
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import yaml

from edge_runtime.errors import AccessError, ConfigError, EdgeRuntimeError, OutputError, UsageError
from edge_runtime.program import extras, output, schema

T = TypeVar("T")
CONFIG_PATH = "config_path"
_LONGEST_FILE = 1 << 20  # characters; far more than settings need


def run_main(function: Callable[[list[str]], int], argv: Sequence[str], prog: str) -> int:
    """Run a program and give its exit code: one line on stderr for an error, a traceback only with --debug.

    `--version` alone is answered here.
    """
    output.open_streams()
    if list(argv) == ["--version"]:
        function = partial(_say_version, prog)
    debug = "--debug" in argv or "--debug=true" in argv
    try:
        try:
            return function(list(argv))
        finally:
            output.flush()  # at exit only the interpreter could tell
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception as error:  # the last door: whatever is not ours is an internal error
        error = extras.explain(error, prog) or error
        if isinstance(error, PermissionError) and error.filename:  # a folder on the way to a file that a user names
            error = AccessError(f"{error.filename}: this user may not look there")
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            error = ConfigError(f"{schema.shown(str(error.filename))} is longer than the name of a file may be")
        if isinstance(error.__cause__, BrokenPipeError) and isinstance(error, OutputError):  # `| head` has seen enough
            return 128 + signal.SIGPIPE
        ours = isinstance(error, EdgeRuntimeError)
        said = str(error) if ours else f"internal error: {type(error).__name__}: {error}"
        if debug:
            traceback.print_exc()
        elif not ours:
            said += " (--debug shows where)"
        with contextlib.suppress(OSError):  # a terminal that was closed
            print(f"{prog}: {one_line(said)}", file=sys.stderr)
        return error.exit_code if isinstance(error, EdgeRuntimeError) else EdgeRuntimeError.exit_code


def _say_version(prog: str, argv: list[str]) -> int:
    output.say(f"{prog} {metadata.version('edge-runtime')}")
    return 0


def dispatch(prog: str, words: Mapping[str, tuple[str, str]], argv: Sequence[str]) -> int:
    """Run the word that `argv` begins with, give its exit code; `words` are word -> (module:function, what it does).

    A word's module is loaded when it is used. Raises UsageError for an unknown word.
    """
    if not argv or argv[0] in ("-h", "--help"):
        width = max(map(len, words))
        table = "\n".join(f"  {word:<{width}}  {what}" for word, (_, what) in words.items())
        output.say(f"usage: {prog} WORD [--flag=value …]; {prog} WORD --help\n\n{table}")
        return 0
    word, *rest = argv
    if word not in words:
        raise UsageError(f"no word {word!r}: {schema.hint(word, words)}")
    module, _, name = words[word][0].partition(":")
    code: int = getattr(importlib.import_module(module), name)(rest)
    return code


def one_line(text: str) -> str:
    """`text` for a terminal: what a file or a peer said in it may hold line breaks and control sequences."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def parse(config_class: type[T], argv: Sequence[str], prog: str, *, positional: str = "") -> T:
    """The configuration that `argv` and its `--config_path` describe.

    Flags are `--name=value`, `--name value` or, for a boolean, `--name`; `a,b` is the list `[a, b]`; words without
    dashes go to the field `positional`. A class with a field `config_path` is given the path, and no file is read.
    `--help` prints every setting and exits 0. Raises UsageError for an unknown or malformed flag and ConfigError for a
    file that cannot be read, an unknown key, a missing field or a value of the wrong type.
    """
    if "--help" in argv or "-h" in argv:
        output.say(help_text(config_class, prog, positional))
        raise SystemExit(0)
    settings, words = _read_flags(config_class, argv, prog)
    if words:
        settings.append((positional, _read_words(config_class, words, positional, prog)))
    raw: dict[str, Any] = {}
    reads_files = schema.find(config_class, [CONFIG_PATH]) is None
    for name, value in settings:
        if name == CONFIG_PATH and reads_files:
            raw = read_file(schema.build(Path, value, CONFIG_PATH))
    for name, value in settings:
        if name != CONFIG_PATH or not reads_files:
            _put(raw, schema.split(config_class, name), value)
    if positional and positional not in raw and schema.is_required(config_class, positional):
        raise UsageError(f"{positional} is missing: {prog} {positional.upper()} [--flag=value …]")
    built: T = schema.build(config_class, raw, "")
    return built


# Flags.


def _read_flags(config_class: type, argv: Sequence[str], prog: str) -> tuple[list[tuple[str, Any]], list[str]]:
    """Names and values in the order given, and the words that are not flags."""
    settings, words, rest = [], [], deque(argv)
    while rest:
        argument = rest.popleft()
        if not argument.startswith("-"):
            words.append(argument)
            continue
        name, equals, text = argument.removeprefix("--").partition("=")
        kind = Path if name == CONFIG_PATH else schema.find(config_class, name.split("."))
        if kind is None or not argument.startswith("--"):
            near = schema.nearest(name.lstrip("-"), {CONFIG_PATH, *schema.names(config_class)})
            hint = f"; did you mean --{near}?" if near else f": see {prog} --help"
            raise UsageError(f"unknown flag {argument.partition('=')[0]}{hint}")
        if not equals:
            if bool in schema.members(kind) and not (rest and rest[0] in ("true", "false")):
                text = "true"
            elif rest and not rest[0].startswith("--"):
                text = rest.popleft()
            else:
                raise UsageError(f"--{name}: a value is missing, expected {schema.expected(kind)}")
        settings.append((name, _read_text(kind, text, name)))
    return settings, words


def _read_words(config_class: type, words: list[str], positional: str, prog: str) -> Any:
    kind = schema.find(config_class, [positional]) if positional else None
    if typing.get_origin(kind) in (list, tuple):
        return words
    unexpected = words[1:] if kind else words
    if unexpected:
        raise UsageError(f"unexpected argument {unexpected[0]!r}: see {prog} --help")
    return words[0]


def _read_text(kind: Any, text: str, name: str) -> Any:
    """A flag's text as YAML, except where text is what is wanted: a task may hold a colon, an id be 007."""
    members = schema.members(kind)
    if all(member in (str, Path, types.NoneType) for member in members):
        return None if text == "null" and types.NoneType in members else text
    try:
        value = _read_yaml(text) if text else text
    except ValueError as error:
        raise ConfigError(f"{name}: {schema.shown(text)} is not {schema.expected(kind)}: {error}") from error
    kinds = {typing.get_origin(member) or member for member in members}
    if text and kinds & {list, tuple} and not isinstance(value, list | dict):
        return [each.strip() for each in text.split(",")]
    return text if str in kinds and type(value) not in kinds else value


def _put(raw: dict[Any, Any], path: Sequence[str], value: Any) -> None:
    """Set a value deep in `raw`; a mapping is merged into the mapping that is there."""
    head, *tail = path
    if tail:
        if not isinstance(raw.get(head), dict):
            raw[head] = {}
        _put(raw[head], tail, value)
    elif isinstance(value, dict) and isinstance(raw.get(head), dict):
        for name, each in value.items():
            _put(raw[head], [name], each)
    else:
        raw[head] = value


# Files.


class _Loader(yaml.SafeLoader):
    """YAML in which a key that is there twice is an error, not a silent last word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for index, key in enumerate(keys):
            if key.value in [other.value for other in keys[:index]]:
                raise yaml.constructor.ConstructorError(
                    problem=f"{key.value} is there twice", problem_mark=key.start_mark
                )
        return super().construct_mapping(node, deep)


def _read_yaml(text: str) -> Any:
    """The value that `text` describes; ValueError says in which line it does not."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise ValueError(f"line {mark.line + 1}: {problem}" if mark else problem) from error
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error


def read_file(path: Path, setting: str = CONFIG_PATH) -> dict[str, Any]:
    """The mapping in the YAML file at `path`, which `setting` names. Raises ConfigError."""
    try:
        with path.open(encoding="utf-8") as file:  # may be the end of a pipe, as in --config_path=<(…)
            text = file.read(_LONGEST_FILE + 1)
    except OSError as error:
        raise ConfigError(f"{setting}: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{setting}: {path} is not text in UTF-8") from error
    if len(text) > _LONGEST_FILE:
        raise ConfigError(f"{setting}: {path} has more than {_LONGEST_FILE} characters")
    try:
        raw = _read_yaml(text)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: {schema.shown(raw)} is not a mapping of settings, such as fps: 30")
    return raw


# Help.


def help_text(config_class: type, prog: str, positional: str = "") -> str:
    """Every setting with its comment in the source and its default, grouped by what it belongs to.

    Those in the class's `ESSENTIALS` come first.
    """
    words = f" {positional.upper()}" if positional else ""
    lines = [
        f"usage: {prog}{words} [--{CONFIG_PATH}=FILE.yaml] [--NAME=VALUE …]",
        "",
        inspect.getdoc(config_class) or "",
    ]
    settings = {setting.name: setting for setting in schema.settings(config_class)}
    first = [settings.pop(name) for name in getattr(config_class, "ESSENTIALS", ())]
    lines += ["", *map(_described, first)] if first else []
    group = None
    for setting in sorted(settings.values(), key=lambda setting: setting.name.rpartition(".")[0]):
        if group != (group := setting.name.rpartition(".")[0]):
            lines += ["", f"{group}:"] if group else [""]
        lines.append(_described(setting))
    return "\n".join(lines)


def _described(setting: schema.Setting) -> str:
    flag = f"  --{setting.name}={_metavar(setting.kind, setting.default)}"
    said = "  ".join(filter(None, (setting.comment, setting.default and f"[{setting.default}]")))
    return f"{flag:<46}  {said}".rstrip()


def _metavar(kind: Any, default: str) -> str:
    """What may stand behind the flag; of a boolean what it is not by default."""
    short = {bool: "false" if default == "true" else "true", int: "N", float: "NUMBER", str: "TEXT", Path: "PATH"}
    words = []
    for member in schema.members(kind):
        if schema.is_literal(member):
            words += [str(word) for word in typing.get_args(member)]
        elif member is not types.NoneType:
            words.append(short.get(member, "[…]" if typing.get_origin(member) in (list, tuple) else "{…}"))
    return "|".join(words)
