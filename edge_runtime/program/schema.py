"""What a configuration dataclass allows, and mappings made into one: each mistake names field, value and expectation.

Understood: dataclasses, draccus' ChoiceRegistry (its key `type` chooses), `dict[str, X]`, `list[X]`, `X | None` and
other unions, Literal, bool, int, float, str, Path. Numbers are finite.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import ipaddress
import math
import os
import re
import types
import typing
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from edge_runtime.errors import ConfigError

CHOICE = "type"  # the key that names a ChoiceRegistry's subclass
REQUIRED = "required"  # a setting's default when it has none
FOREVER_S = 1_000_000_000  # 31 years; a thread can wait for so long, and not for ten times as long
_NAME_BYTES = 128
_SOCKET_BYTES = 107  # sun_path of unix(7)
_PORT = re.compile(r"[0-9]{1,5}")
_HOST = re.compile(r"[\w.-]+")


def build(kind: Any, raw: Any, path: str) -> Any:
    """`raw` as a value of type `kind`; the ConfigError of one that cannot be starts with `path`."""
    if isinstance(raw, str):
        _check_text(raw, path)
    alternatives = members(kind)
    if raw is None and types.NoneType in alternatives:
        return None
    for member in alternatives:
        origin = typing.get_origin(member)
        if isinstance(raw, Mapping) and _classes(member):
            return _build_dataclass(member, raw, path)
        if isinstance(raw, Mapping) and origin is dict:
            of = typing.get_args(member)[1]
            return {build(str, str(name), path): build(of, each, _join(path, name)) for name, each in raw.items()}
        if isinstance(raw, list) and origin in (list, tuple):
            of = typing.get_args(member)[0]
            return origin(build(of, each, _join(path, index)) for index, each in enumerate(raw))
    for member in alternatives:
        try:
            return _scalar(member, raw)
        except (ValueError, OverflowError, RuntimeError):  # RuntimeError: ~nobody has no home
            continue
    words = [word for member in alternatives if is_literal(member) for word in typing.get_args(member)]
    raise ConfigError(f"{path}: {shown(raw)} is not {expected(kind)}{_suggestion(raw, words)}")


def _check_text(text: str, path: str) -> None:
    """Text goes to servers and into files and their names, none of which take all that a Python string can hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:  # bytes on the command line that are none, or a locale that is not UTF-8
        raise ConfigError(f"{path}: {shown(text)} is not text in UTF-8") from error
    if "\0" in text:
        raise ConfigError(f"{path}: {shown(text)} holds a NUL, which no text may")


def _build_dataclass(kind: Any, raw: Mapping[Any, Any], path: str) -> Any:
    raw = dict(raw)
    cls = _choose(kind, raw, path)
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    for key in raw:
        if key not in fields:
            what = f"no such setting of {cls.get_choice_name(cls)}" if cls is not kind else "no such setting"
            near = nearest(str(key), [*fields, CHOICE] if cls is not kind else fields)
            hint = f"; did you mean {_join(path, near)}?" if near else "; --help lists them all"
            raise ConfigError(f"{_join(path, key)}: {what}{hint}")
    values = {name: build(hints[name], each, _join(path, name)) for name, each in raw.items()}
    for name, field in fields.items():
        if name not in raw and _is_required(field):
            if _classes(hints[name]):
                values[name] = build(hints[name], {}, _join(path, name))
            else:
                raise ConfigError(f"{_join(path, name)}: is missing, expected {expected(hints[name])}")
    try:
        return cls(**values)
    except ConfigError as error:
        if not path or str(error).startswith(path):
            raise
        raise ConfigError(f"{path}.{error}") from error


def _choose(kind: Any, raw: dict[Any, Any], path: str) -> Any:
    """The dataclass to build: `kind` itself, or the subclass that the key `type` names."""
    if not _is_choice(kind):
        return kind
    choices = kind.get_known_choices()
    word = raw.pop(CHOICE, kind.default_choice_name())
    if word is None and kind in choices.values():
        return kind
    if not isinstance(word, str) or word not in choices:
        said = "is missing" if word is None else f"{shown(word)} is not known"
        hint = "" if word is None else _suggestion(word, choices)
        raise ConfigError(f"{_join(path, CHOICE)}: {said}, expected one of {', '.join(choices)}{hint}")
    return choices[word]


def _scalar(kind: Any, raw: Any) -> Any:
    """`raw` as a `kind`, or ValueError. Text that reads as a number is one; a boolean is not."""
    if is_literal(kind):
        raw = "off" if raw is False else raw  # YAML 1.1 reads the bare word so
        for word in typing.get_args(kind):
            if str(raw) == str(word) and isinstance(raw, bool) == isinstance(word, bool):
                return word
    elif kind is bool and raw in (True, False, "true", "false") and isinstance(raw, bool | str):
        return raw in (True, "true")
    elif isinstance(raw, bool):
        raise ValueError
    elif kind is int and isinstance(raw, int | str):
        return int(raw)
    elif kind is float and isinstance(raw, int | float | str) and math.isfinite(float(raw)):
        return float(raw)
    elif kind is str and isinstance(raw, int | float | str):
        return str(raw)
    elif kind is Path and isinstance(raw, str) and raw:
        return Path(raw).expanduser()
    raise ValueError


# Types.


@dataclasses.dataclass(frozen=True)
class Setting:
    """One flag: its dotted name, its type, and what --help says of it."""

    name: str
    kind: Any
    default: str
    comment: str


def settings(kind: Any, prefix: str = "", chosen: str | None = None) -> Iterator[Setting]:
    """All settings below `kind`, depth first; those that several choices share come once. `chosen` is the default."""
    seen: set[str] = set()
    if _is_choice(kind):
        default = chosen or kind.default_choice_name() or REQUIRED
        yield Setting(f"{prefix}{CHOICE}", typing.Literal[tuple(kind.get_known_choices())], default, "what it is")
    for cls in _classes(kind):
        comments, hints = _comments(cls), typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            name = prefix + field.name
            if name in seen or not field.init:
                continue
            seen.add(name)
            below, dots = hints[field.name], "."
            if typing.get_origin(below) is dict and _classes(typing.get_args(below)[1]):
                below, dots = typing.get_args(below)[1], ".NAME."
            if _classes(below):
                yield from settings(below, name + dots, _chosen(below, field))
            else:
                yield Setting(name, below, _default(field), comments.get(field.name, ""))


def names(kind: Any) -> set[str]:
    """Every dotted name that `find` knows, as far as names are fixed."""
    leaves = {setting.name for setting in settings(kind)}
    parents = {name.rpartition(".")[0].removesuffix(".NAME") for name in leaves}
    return leaves | parents - {""}


def find(kind: Any, path: Sequence[str]) -> Any:
    """The type of the setting at `path` below `kind`, or None where there is none."""
    if not path:
        return kind
    head, *tail = path
    for member in members(kind):
        if typing.get_origin(member) is dict and head:
            of = typing.get_args(member)[1]
            return of if _is_plain(of) else find(of, tail)
        if _is_choice(member) and list(path) == [CHOICE]:
            return str
        for cls in _classes(member):
            if head in {field.name for field in dataclasses.fields(cls) if field.init}:
                return find(typing.get_type_hints(cls)[head], tail)
    return None


def split(kind: Any, name: str) -> list[str]:
    """The keys that lead to the setting `name`: in a mapping of plain values all that is left is one, dots included."""
    keys: list[str] = []
    left = name.split(".")
    while left:
        here = find(kind, keys)
        if any(typing.get_origin(each) is dict and _is_plain(typing.get_args(each)[1]) for each in members(here)):
            return [*keys, ".".join(left)]
        keys.append(left.pop(0))
    return keys


def is_required(cls: Any, name: str) -> bool:
    """Whether the dataclass `cls` cannot be built without its field `name`."""
    return any(_is_required(field) for field in dataclasses.fields(cls) if field.name == name)


def members(kind: Any) -> tuple[Any, ...]:
    """The alternatives of a union, narrow before wide: text takes anything, so it is tried last."""
    union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return tuple(sorted(typing.get_args(kind), key=(str, Path).__contains__)) if union else (kind,)


def _classes(kind: Any) -> list[Any]:
    """The dataclasses that a value of `kind` may be; none when it is no dataclass."""
    if _is_choice(kind):
        return list(kind.get_known_choices().values())
    return [kind] if dataclasses.is_dataclass(kind) else []


def _is_plain(kind: Any) -> bool:
    """Whether there are no settings below a value of this type."""
    return not _classes(kind) and not any(typing.get_origin(member) is dict for member in members(kind))


def _is_choice(kind: Any) -> bool:
    return hasattr(kind, "get_known_choices")


def is_literal(kind: Any) -> bool:
    return typing.get_origin(kind) is typing.Literal


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _chosen(kind: Any, field: dataclasses.Field[Any]) -> str | None:
    """The choice that the field's default is of."""
    if not _is_choice(kind) or field.default_factory is dataclasses.MISSING or "NAME" in field.name:
        return None
    default = type(field.default_factory())
    return str(kind.get_choice_name(default)) if default in kind.get_known_choices().values() else None


def _default(field: dataclasses.Field[Any]) -> str:
    if _is_required(field):
        return REQUIRED
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return "" if value in (None, "", {}, [], ()) else str(value).lower() if isinstance(value, bool) else str(value)


@functools.cache
def _comments(cls: type) -> dict[str, str]:
    """Field -> the comment on its line, from the class's source and its ancestors'."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            found |= dict(re.findall(r"^    (\w+):.*?  # (.*)$", inspect.getsource(base), re.MULTILINE))
    return found


# Words.

_EXPECTED = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path"}


def expected(kind: Any) -> str:
    """What a value of `kind` looks like, for a sentence."""
    words = []
    for member in members(kind):
        origin, arguments = typing.get_origin(member), typing.get_args(member)
        if is_literal(member):
            words.append("one of " * (len(arguments) > 1) + ", ".join(str(word) for word in arguments))
        elif origin is dict:
            words.append(f"a mapping of names to {_plural(arguments[1])}")
        elif origin in (list, tuple):
            words.append(f"a list of {_plural(arguments[0])}")
        elif member in _EXPECTED:
            words.append(_EXPECTED[member])
        elif member is not types.NoneType:
            words.append("a mapping of settings")
    return " or ".join(words)


def _plural(kind: Any) -> str:
    return {float: "numbers", int: "whole numbers", Path: "paths", str: "text"}.get(kind, "settings")


def shown(value: Any) -> str:
    """A value as one would write it in YAML, cut to a glance."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _join(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that `name` is a slip of, or the only one that ends like it; else empty."""
    known = list(known)
    ends = [each for each in known if each.rpartition(".")[2] == name]
    near = ends[:1] if len(ends) == 1 else difflib.get_close_matches(name, known, 1)
    return near[0] if near else ""


def hint(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about a `name` that is not `known`."""
    known = list(known)
    near = nearest(name, known)
    return f"did you mean {near}?" if near else f"expected one of {', '.join(known)}"


def _suggestion(raw: Any, words: Iterable[Any]) -> str:
    """As `hint`, after a sentence that lists the words; numbers have no neighbours."""
    near = nearest(raw, [word for word in words if isinstance(word, str)]) if isinstance(raw, str) else ""
    return f"; did you mean {near}?" if near else ""


# -- what a configuration class checks of its own values: ranges, addresses and names


def check_ranges(config: object, path: str = "", **ranges: tuple[float, float]) -> None:
    """ConfigError for the first field of `config` that is not in its range, ends included; None is in every range."""
    for name, (low, high) in ranges.items():
        value = getattr(config, name)
        if value is not None and not low <= value <= high:
            allowed = f"not in {_number(low)}..{_number(high)}" if high < math.inf else f"less than {_number(low)}"
            raise ConfigError(f"{path and path + '.'}{name}: {_number(value)} is {allowed}")


def check_address(text: str, path: str, schemes: Sequence[str] = ("http", "https")) -> None:
    """ConfigError unless `text` is the URL of a server."""
    try:
        parts = urllib.parse.urlsplit(text)
        known = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0  # .port raises for no number
        (parts.hostname or "").encode("idna")  # raises for what no name server can be asked
    except ValueError:
        known = False
    if not known or not text.isascii() or not text.isprintable() or " " in text:  # HTTP would be sent none of these
        raise ConfigError(f"{path}: {shown(text)} is not an address such as {schemes[0]}://127.0.0.1:8090/page")


def split_address(text: str, path: str, first_port: int = 1) -> tuple[str, int]:
    """Host, without brackets, and port of HOST:PORT; of unix:/path an empty host and 0. Raises ConfigError."""
    if text.startswith("unix:"):
        file = text.removeprefix("unix:")
        if not file.startswith("/") or len(os.fsencode(file)) > _SOCKET_BYTES:
            raise ConfigError(f"{path}: {shown(text)} is not unix:/PATH of at most {_SOCKET_BYTES} bytes")
        return "", 0
    host, _, port = text.rpartition(":")
    if not _is_host(host) or not _PORT.fullmatch(port) or not first_port <= int(port) < 65536:
        raise ConfigError(f"{path}: {shown(text)} is not HOST:PORT or unix:/path")
    return host.strip("[]"), int(port)


def _is_host(text: str) -> bool:
    """A name, an IPv4 address, or an IPv6 address in brackets."""
    try:
        if text.startswith("[") and text.endswith("]"):
            ipaddress.IPv6Address(text[1:-1])
            return True
        text.encode("idna")  # raises for labels that are empty or too long
    except ValueError:
        return False
    return _HOST.fullmatch(text) is not None


def check_file_name(name: str, path: str, example: str) -> None:
    """ConfigError unless a file can be named for `name`, and a server be told it."""
    if not name or "/" in name or not name.isprintable() or len(name.encode()) > _NAME_BYTES:
        raise ConfigError(
            f"{path}: {shown(name)} is not the name of a calibration file (at most {_NAME_BYTES} bytes, without /), "
            f"such as {example}"
        )


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.12g}"
