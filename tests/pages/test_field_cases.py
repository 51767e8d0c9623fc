"""docs/field-cases.md: each fault from the field names a test or a script, and what it names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "field-cases.md"
TEXT = PAGE.read_text() if PAGE.exists() else ""
ROWS = [line for line in TEXT.splitlines() if line.startswith("| ") and "**" not in line][2:]

pytestmark = pytest.mark.skipif(not TEXT, reason="the page is in the repository, not in the wheel")


@cache
def names_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


@pytest.mark.parametrize(("file", "test"), sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT))))
def test_what_a_row_names_is_there(file: str, test: str) -> None:
    assert test in names_in(file)


def test_every_row_names_a_test() -> None:
    assert len(ROWS) >= 41
    assert [row for row in ROWS if "::test_" not in row] == []


def test_scripts_and_reports_are_there() -> None:
    for script in re.findall(r"`(scripts/[\w/]+(?:\.py)?)", TEXT):
        assert (ROOT / script).exists()
    assert set(re.findall(r"\[([\w/-]+#\d+)\](?!:)", TEXT)) == set(
        re.findall(r"^\[([\w/-]+#\d+)\]: https://", TEXT, re.M)
    )
