"""The tables in docs/faults.md and docs/safety.md: every row has a test, and the test is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("name", "least"), [("faults.md", 25), ("safety.md", 8)])
def test_every_row_of_the_matrix_names_a_test_that_is_there(name: str, least: int) -> None:
    page = ROOT / "docs" / name
    if not page.exists():
        pytest.skip("not in a checkout")
    rows = [line for line in page.read_text().splitlines() if line.startswith("| ") and "**" not in line][2:]
    assert len(rows) > least
    existing = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (\w+)", path.read_text(), re.M)
    }
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row)
        assert named, row
        assert set(named) <= existing, row
