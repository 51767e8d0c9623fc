"""docs/policy-server.md and docs/sizing.md: tests and measurements that they name are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "docs" / "policy-server.md", ROOT / "docs" / "sizing.md"]
TEXT = "".join(page.read_text() for page in PAGES if page.exists())

pytestmark = pytest.mark.skipif(not TEXT, reason="the pages are in the repository, not in the wheel")


@pytest.mark.parametrize(("file", "test"), sorted(set(re.findall(r"`(test_\w+\.py)::(\w+)`", TEXT))))
def test_the_test_that_is_named_is_there(file: str, test: str) -> None:
    found = [path for room in ("policy_server", "e2e") for path in (ROOT / "tests" / room).rglob(file)]
    functions = {node.name for node in ast.parse(found[0].read_text()).body if isinstance(node, ast.FunctionDef)}
    assert test in functions


def test_the_measurements_that_are_named_are_there() -> None:
    parts = re.search(r"^PARTS = {(.*)}$", (ROOT / "scripts" / "benches" / "server" / "reach.py").read_text(), re.M)
    assert parts is not None
    named = set(re.findall(r"--only=(\w+)", TEXT))
    assert named
    assert named <= set(re.findall(r'"(\w+)":', parts[1]))
