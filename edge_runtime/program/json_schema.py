"""What `schema` takes for a document, as a JSON Schema: `python -m edge_runtime.program.json_schema MODULE:CLASS`."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any

from edge_runtime.program import schema

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", types.NoneType: "null"}


def of(kind: Any) -> dict[str, Any]:
    """The schema of the dataclass `kind`, each field with its comment in the source."""
    return {"$schema": DIALECT, "title": kind.__name__, **_of(kind)}


def _of(kind: Any) -> dict[str, Any]:
    alternatives = [_with_rules(_plain(member), rules) for member, rules in schema.alternatives(kind)]
    return alternatives[0] if len(alternatives) == 1 else {"anyOf": alternatives}


def _with_rules(described: dict[str, Any], rules: tuple[schema.Rule, ...]) -> dict[str, Any]:
    for rule in rules:
        described |= rule.json_schema()
    return described


def _plain(kind: Any) -> dict[str, Any]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _object(kind)
    if schema.is_literal(kind):
        return {"enum": list(arguments)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _of(arguments[1]), **_names(_of(arguments[0]))}
    if origin is tuple and arguments[1:] != (...,):
        return {"type": "array", "prefixItems": [_of(each) for each in arguments], "items": False}
    if origin in (list, tuple):
        return {"type": "array", "items": _of(arguments[0])}
    return {} if kind is Any else {"type": _TYPES[kind]}


def _names(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {} if keys == {"type": "string"} else {"propertyNames": keys}


def _object(kind: Any) -> dict[str, Any]:
    hints, comments = schema.hints(kind), schema.comments(kind)
    properties = {}
    for field in dataclasses.fields(kind):
        said = {"description": comments[field.name]} if field.name in comments else {}
        default = {} if schema.is_required(kind, field.name) else {"default": field.default}
        properties[field.name] = _of(hints[field.name]) | said | default
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if schema.is_required(kind, name)],
        "additionalProperties": False,
    }


if __name__ == "__main__":
    module, _, name = sys.argv[1].partition(":")
    print(json.dumps(of(getattr(importlib.import_module(module), name)), indent=2, ensure_ascii=False))
