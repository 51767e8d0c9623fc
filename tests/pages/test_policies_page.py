"""docs/policies.md: each cell says in agreed words what was shown, and each row's tests exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHOWN = ("LeRobot's outputs", "stand-in that speaks its protocol", "its own stored pair")
NOT_SHOWN = ("*not tried", "no")


def rows() -> list[list[str]]:
    table = re.search(r"^\| policy .*?\n\n", (ROOT / "docs" / "policies.md").read_text(), re.MULTILINE | re.DOTALL)
    assert table
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[0].strip().splitlines()]


def test_each_cell_says_what_was_shown_and_by_which_test() -> None:
    head, _, *table = rows()
    assert head == ["policy", "ONNX", "LeRobot's torch", "behind openpi", "test"]
    named: list[str] = []
    for policy, *cells, test in table:
        assert all(cell.startswith((*SHOWN, *NOT_SHOWN)) for cell in cells), policy
        named = named if test == "the same" else re.findall(r"`(tests/[\w/]+\.py)`", test)
        if any(cell.startswith(SHOWN) for cell in cells):
            assert named, policy
        assert all((ROOT / each).is_file() for each in named), policy


def test_the_policies_of_the_mission_are_there() -> None:
    assert {"ACT", "SmolVLA", "PI0", "PI0.5"} <= {row[0] for row in rows()}
