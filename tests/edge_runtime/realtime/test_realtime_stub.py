"""The compiled module's stub says what the module has: the same public names, and the same parameters."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

from edge_runtime import _realtime

STUB = ast.parse(Path(_realtime.__file__).with_name("_realtime.pyi").read_text(encoding="utf-8"))
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef) and hasattr(_realtime, node.name)}
FUNCTIONS = {node.name: node for node in STUB.body if isinstance(node, ast.FunctionDef)}


def parameters(function: ast.FunctionDef) -> list[str]:
    arguments = function.args
    return [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def public(names: object) -> set[str]:
    return {name for name in vars(names) if not name.startswith("_")}


def test_every_class_of_ours_is_in_the_stub() -> None:
    ours = {name for name, value in vars(_realtime).items() if getattr(value, "__module__", "") == _realtime.__name__}
    assert {name for name in ours if not name.startswith("_")} == set(CLASSES) | set(FUNCTIONS)


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_a_class_has_what_its_stub_says(name: str) -> None:
    runtime, body = getattr(_realtime, name), CLASSES[name].body
    stated = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
    fields = {node.target.id for node in body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    assert public(runtime) | set(getattr(runtime, "__dataclass_fields__", ())) == set(stated) - {"__init__"} | fields
    for method, node in stated.items():
        if callable(getattr(runtime, method)) and method != "__init__":
            assert list(inspect.signature(getattr(runtime, method)).parameters) == parameters(node)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_a_function_has_what_its_stub_says(name: str) -> None:
    assert list(inspect.signature(getattr(_realtime, name)).parameters) == parameters(FUNCTIONS[name])
