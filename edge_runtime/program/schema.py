"""What a configuration dataclass allows, and mappings made into one: each mistake names field, value and expectation.

Understood: dataclasses, `Choice` (its key `type` chooses), `dict[str, X]`, `list[X]`, `tuple[X, Y]`, `X | None` and
other unions, Literal, bool, int, float, str, Path, Any, and `Annotated[X, Range(1, 9)]` with any `Rule`. Numbers are
finite. It serves settings (flags, YAML) and documents (JSON: manifest, calibration, record of a fault) alike.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from edge_runtime.errors import ConfigError

T = TypeVar("T")
CHOICE = "type"  # the key that names a Choice's subclass
REQUIRED = "required"  # a setting's default when it has none
FOREVER_S = 1_000_000_000  # 31 years; a thread can wait for so long, and not for ten times as long
_NAME_BYTES = 128
_SOCKET_BYTES = 107  # sun_path of unix(7)
_PORT = re.compile(r"[0-9]{1,5}")
_HOST = re.compile(r"[\w.-]+")


def build(kind: Any, raw: Any, path: str, *, document: bool = False) -> Any:
    """`raw` as a value of type `kind`; the ConfigError of one that cannot be starts with `path`.

    A `document` is JSON that a program wrote: there "1" is not a number, and its words are JSON's.
    """
    if isinstance(raw, str):
        _check_text(raw, path)
    for member, rules in alternatives(kind):
        try:
            value = _value(member, rules, raw, path, document)
        except _Other:
            continue
        _obey(rules, value, kind, path, document)
        return value
    words = [word for member in members(kind) if is_literal(member) for word in typing.get_args(member)]
    raise ConfigError(f"{path}: {shown(raw)} is not {expected(kind, document)}{_suggestion(raw, words)}")


def build_document(kind: Any, raw: Any) -> Any:
    """The JSON `raw` as a `kind`, which says what it holds; a ConfigError begins with the field."""
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{shown(raw)} is not {expected(kind, document=True)}")
    return build(kind, raw, "", document=True)


class _Other(Exception):
    """The value is not of this alternative of its type."""


def _value(kind: Any, rules: Sequence[Rule], raw: Any, path: str, document: bool) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or (kind is types.NoneType and raw is None):
        return raw
    if isinstance(raw, Mapping) and _classes(kind):
        return _build_dataclass(kind, raw, path, document)
    if isinstance(raw, Mapping) and origin is dict:
        return {
            build(arguments[0], str(name), _join(path, name) if document else path): build(
                arguments[1], each, _join(path, name), document=document
            )
            for name, each in raw.items()
        }
    if isinstance(raw, list | tuple) and origin in (list, tuple):
        kinds = arguments if origin is tuple and arguments[1:] != (...,) else arguments[:1] * len(raw)
        if len(kinds) != len(raw):
            raise _Other
        pairs = enumerate(zip(kinds, raw, strict=True))
        return origin(build(of, each, f"{path}[{index}]", document=document) for index, (of, each) in pairs)
    try:
        return _scalar(kind, raw, document, finite=not any(isinstance(rule, NotFinite) for rule in rules))
    except (ValueError, OverflowError, RuntimeError) as error:  # RuntimeError: ~nobody has no home
        raise _Other from error


def _check_text(text: str, path: str) -> None:
    """Text goes to servers and into files and their names, none of which take all that a Python string can hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:  # bytes on the command line that are none, or a locale that is not UTF-8
        raise ConfigError(f"{path}: {shown(text)} is not text in UTF-8") from error
    if "\0" in text:
        raise ConfigError(f"{path}: {shown(text)} holds a NUL, which no text may")


def _build_dataclass(kind: Any, raw: Mapping[Any, Any], path: str, document: bool) -> Any:
    raw = dict(raw)
    cls = _choose(kind, raw, path)
    kinds = hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    for key in raw:
        if key not in fields:
            raise ConfigError(f"{_join(path, key)}: {_unknown(str(key), kind, cls, list(fields), path, document)}")
    values = {name: build(kinds[name], each, _join(path, name), document=document) for name, each in raw.items()}
    for name, field in fields.items():
        if name not in raw and _is_required(field):
            if _classes(kinds[name]) and not document:
                values[name] = build(kinds[name], {}, _join(path, name))
            else:
                raise ConfigError(f"{_join(path, name)}: is missing, expected {expected(kinds[name], document)}")
    try:
        return cls(**values)
    except ConfigError as error:
        if not path or str(error).startswith(path):
            raise
        raise ConfigError(f"{path}.{error}") from error


def _unknown(key: str, kind: Any, cls: Any, fields: list[str], path: str, document: bool) -> str:
    if document:
        return f"is not known; {hint(key, fields)}"
    what = f"no such setting of {cls.get_choice_name(cls)}" if cls is not kind else "no such setting"
    near = nearest(key, [*fields, CHOICE] if cls is not kind else fields)
    return what + (f"; did you mean {_join(path, near)}?" if near else "; --help lists them all")


def _choose(kind: Any, raw: dict[Any, Any], path: str) -> Any:
    """The dataclass to build: `kind` itself, or the subclass that the key `type` names."""
    if not _is_choice(kind):
        return kind
    choices = kind.get_known_choices()
    word = raw.pop(CHOICE, None)
    if word is None and kind in choices.values():
        return kind
    if not isinstance(word, str) or word not in choices:
        said = "is missing" if word is None else f"{shown(word)} is not known"
        hint = "" if word is None else _suggestion(word, choices)
        raise ConfigError(f"{_join(path, CHOICE)}: {said}, expected one of {', '.join(choices)}{hint}")
    return choices[word]


def _scalar(kind: Any, raw: Any, document: bool, finite: bool) -> Any:
    """`raw` as a `kind`, or ValueError. A boolean is no number; text that reads as one is, but in a document."""
    if document and kind in _IN_JSON and not isinstance(raw, _IN_JSON[kind]):
        raise ValueError
    if is_literal(kind):
        raw = "off" if raw is False and not document else raw  # YAML 1.1 reads the bare word so
        for word in typing.get_args(kind):
            alike = type(raw) is type(word) if document else isinstance(raw, bool) == isinstance(word, bool)
            if str(raw) == str(word) and alike:
                return word
    elif kind is bool and raw in (True, False, "true", "false") and isinstance(raw, bool | str):
        return raw in (True, "true")
    elif isinstance(raw, bool):
        raise ValueError
    elif kind is int and isinstance(raw, int | str):
        return int(raw)
    elif kind is float and isinstance(raw, int | float | str) and (math.isfinite(float(raw)) or not finite):
        return float(raw)
    elif kind is str and isinstance(raw, int | float | str):
        return str(raw)
    elif kind is Path and isinstance(raw, str) and raw:
        return Path(raw).expanduser()
    raise ValueError


# Rules: what a type alone cannot say, as in `Annotated[float, Range(1, 1000)]`.


class Rule:
    """What else a value of the annotated type must be."""

    def allows(self, value: Any) -> bool:
        return True

    def expected(self, kind: str) -> str:
        """`kind`, which is the type in words, with this rule in words."""
        return kind

    def refusal(self, value: Any, expected: str) -> str:
        """The sentence about a `value` that is not allowed."""
        return f"{shown(value)} is not {expected}"

    def json_schema(self) -> dict[str, Any]:
        """This rule in the words of JSON Schema, as far as it has them."""
        return {}


@dataclasses.dataclass(frozen=True)
class Range(Rule):
    """A number from `low` to `high`, ends included."""

    low: float
    high: float = math.inf

    def allows(self, value: float) -> bool:
        return self.low <= value <= self.high

    def expected(self, kind: str) -> str:
        return f"{kind} in {self}" if self.high < math.inf else f"{kind} of at least {_number(self.low)}"

    def refusal(self, value: float, expected: str) -> str:
        allowed = f"not in {self}" if self.high < math.inf else f"less than {_number(self.low)}"
        return f"{_number(value)} is {allowed}"

    def json_schema(self) -> dict[str, Any]:
        return {"minimum": self.low} | ({"maximum": self.high} if self.high < math.inf else {})

    def __str__(self) -> str:
        return f"{_number(self.low)}..{_number(self.high)}"


@dataclasses.dataclass(frozen=True)
class Printable(Rule):
    """Text of `least` to `most` printable characters."""

    most: int
    least: int = 1

    def allows(self, value: str) -> bool:
        return self.least <= len(value) <= self.most and value.isprintable()

    def expected(self, kind: str) -> str:
        return f"{kind} of {self.least} to {self.most} printable characters"

    def json_schema(self) -> dict[str, Any]:
        return {"minLength": self.least, "maxLength": self.most}


@dataclasses.dataclass(frozen=True)
class Items(Rule):
    """A list of at least so many."""

    least: int

    def allows(self, value: Sequence[Any]) -> bool:
        return len(value) >= self.least

    def expected(self, kind: str) -> str:
        return kind.replace("a list of", f"a list of at least {self.least}", 1)

    def refusal(self, value: Sequence[Any], expected: str) -> str:
        return super().refusal(list(value), expected)

    def json_schema(self) -> dict[str, Any]:
        return {"minItems": self.least}


@dataclasses.dataclass(frozen=True)
class Distinct(Rule):
    """A list in which no two have the same value of this field."""

    field: str

    def allows(self, value: Sequence[Any]) -> bool:
        return len({getattr(each, self.field) for each in value}) == len(value)

    def refusal(self, value: Sequence[Any], expected: str) -> str:
        return f"{shown([getattr(each, self.field) for each in value])} is not a list of distinct {self.field}s"


Port = Annotated[int, Range(0, 65535)]  # 0 = any that is free
Milliseconds = Annotated[float, Range(0, 60_000)]


class NotFinite(Rule):
    """NaN and infinity are numbers too: such as a position that was never read."""


def check_fields(config: Any, path: str = "") -> None:
    """ConfigError for the first field of a dataclass that breaks a rule of its type.

    `build` sees to that; a class that people build themselves calls this in `__post_init__`. `path` is where such a
    dataclass stands in the settings.
    """
    kinds = hints(config.__class__)
    for name in (field.name for field in dataclasses.fields(config)):
        value = getattr(config, name)
        for member, rules in alternatives(kinds[name]):
            of = (int, float) if member is float else typing.get_origin(member) or member
            if rules and isinstance(value, of) and not isinstance(value, bool):
                _obey(rules, value, kinds[name], _join(path, name))


def _obey(rules: Iterable[Rule], value: Any, kind: Any, path: str, document: bool = False) -> None:
    for rule in rules:
        if not rule.allows(value):
            raise ConfigError(f"{path}: {rule.refusal(value, expected(kind, document))}")


class Choice:
    """A dataclass whose key `type` chooses one of the subclasses registered for it."""

    _choices: typing.ClassVar[dict[str, type]]

    def __init_subclass__(cls) -> None:
        if Choice in cls.__bases__:
            cls._choices = {}

    @classmethod
    def register_subclass(cls, name: str) -> Callable[[type[T]], type[T]]:
        """The class that follows is what `type: name` means."""

        def register(subclass: type[T]) -> type[T]:
            cls._choices[name] = subclass
            return subclass

        return register

    @classmethod
    def get_known_choices(cls) -> dict[str, Any]:
        return cls._choices

    @classmethod
    def get_choice_name(cls, subclass: type) -> str:
        """The name that `subclass` was registered under."""
        return next(name for name, each in cls._choices.items() if each is subclass)


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
        default = chosen or REQUIRED
        yield Setting(f"{prefix}{CHOICE}", typing.Literal[tuple(kind.get_known_choices())], default, "what it is")
    for cls in _classes(kind):
        said, kinds = comments(cls), hints(cls)
        for field in dataclasses.fields(cls):
            name = prefix + field.name
            if name in seen or not field.init:
                continue
            seen.add(name)
            below, dots = kinds[field.name], "."
            if typing.get_origin(below) is dict and _classes(typing.get_args(below)[1]):
                below, dots = typing.get_args(below)[1], ".NAME."
            if _classes(below):
                yield from settings(below, name + dots, _chosen(below, field))
            else:
                yield Setting(name, below, _default(field), said.get(field.name, ""))


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
                return find(hints(cls)[head], tail)
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
    return tuple(member for member, _ in alternatives(kind))


@functools.cache
def alternatives(kind: Any) -> Sequence[tuple[Any, tuple[Rule, ...]]]:
    """As `members`, each with the rules of its annotation."""
    union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    found: list[tuple[Any, tuple[Rule, ...]]] = []
    for member in typing.get_args(kind) if union else (kind,):
        annotated = typing.get_origin(member) is Annotated
        found.append((member.__origin__, member.__metadata__) if annotated else (member, ()))
    return sorted(found, key=lambda each: each[0] in (str, Path))


@functools.cache
def hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


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
def comments(cls: type) -> dict[str, str]:
    """Field -> the comment on its line, from the class's source and its ancestors'."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            found |= dict(re.findall(r"^    (\w+):.*?  # (.*)$", inspect.getsource(base), re.MULTILINE))
    return found


# Words.

_IN_JSON: dict[type, Any] = {bool: bool, int: int, float: (int, float), str: str}
_EXPECTED = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path"}


def expected(kind: Any, document: bool = False) -> str:
    """What a value of `kind` looks like, for a sentence."""
    words = []
    for member, rules in alternatives(kind):
        if member is not types.NoneType:
            said = _expected(member, document)
            for rule in rules:
                said = rule.expected(said)
            words.append(said)
    return " or ".join(words)


def _expected(kind: Any, document: bool) -> str:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if is_literal(kind):
        return "one of " * (len(arguments) > 1) + ", ".join(str(word) for word in arguments)
    if origin is tuple and arguments[1:] != (...,):
        return f"a list of {' and '.join(expected(each, document) for each in arguments)}"
    if origin in (list, tuple):
        return f"a list of {_plural(arguments[0], document)}"
    if kind in _EXPECTED:
        return _EXPECTED[kind]
    if document:
        return "an object"
    return f"a mapping of names to {_plural(arguments[1], document)}" if origin is dict else "a mapping of settings"


def _plural(kind: Any, document: bool) -> str:
    words = {float: "numbers", int: "whole numbers", Path: "paths", str: "text"}
    other = "lists" if typing.get_origin(members(kind)[0]) in (list, tuple) else "objects"
    return words.get(members(kind)[0], other if document else "settings")


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


# Addresses and names, which configuration classes check for themselves.


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
    return shown(value) if isinstance(value, int) else f"{value:.12g}"
