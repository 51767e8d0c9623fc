"""docs/threat-model.md: every claim names a test that exists, and every script that it names is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "threat-model.md"
TESTS = ROOT / "tests"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the page is in the repository, not in the wheel")


def named() -> list[tuple[str, str]]:
    return re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE.read_text())


@pytest.mark.parametrize(("file", "test"), sorted(set(named())) if PAGE.exists() else [])
def test_the_test_that_is_named_is_there(file: str, test: str) -> None:
    found = [path for path in (TESTS / "security" / file, TESTS / file) if path.exists()]
    assert found
    functions = {node.name for node in ast.parse(found[0].read_text()).body if isinstance(node, ast.FunctionDef)}
    assert test in functions


def test_every_row_names_one() -> None:
    """Or says that nothing is refused there."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    claims = [
        row
        for row in rows
        if row not in ("| can | but |",) and "what happens" not in row and "what the robot" not in row
    ]
    bare = [row for row in claims if "::test_" not in row and "answered: who may ask may ask" not in row]
    assert len(claims) > 15
    assert not bare


def test_scripts_and_pages_are_there() -> None:
    text = PAGE.read_text()
    for name in re.findall(r"`(scripts/[\w/]+\.py)`", text) + [
        f"docs/{page}" for page in re.findall(r"\]\(([\w-]+\.md)\)", text)
    ]:
        assert (ROOT / name).exists(), name
    assert re.search(r"^fuzz: ", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_it_is_a_page() -> None:
    assert len(PAGE.read_text().splitlines()) < 130
