"""docs/bundle.md and its JSON Schema are held to the dataclass that reads a manifest."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

from edge_runtime.program import json_schema
from policy_server.bundle import ADDED, SHIPPED, Manifest

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_schema_is_that_of_the_dataclass() -> None:
    """If not: python -m edge_runtime.program.json_schema policy_server.bundle:Manifest > docs/bundle.schema.json"""
    assert json.loads((DOCS / "bundle.schema.json").read_text()) == json_schema.of(Manifest)


def test_the_page_has_a_row_for_every_field_in_order() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", (DOCS / "bundle.md").read_text(), re.MULTILINE)
    assert rows == [field.name for field in fields(Manifest)]


def test_the_schema_says_what_is_required_and_what_bounds_it() -> None:
    schema = json_schema.of(Manifest)
    assert set(schema["properties"]) - set(schema["required"]) == set(ADDED)
    assert schema["properties"]["fps"].items() >= {"type": "number", "minimum": 0.1, "maximum": 1000}.items()
    assert schema["properties"]["joints"]["minItems"] == 1
    assert {"type": "null"} in schema["properties"]["robot_type"]["anyOf"]
    manifest = json.loads((SHIPPED / "act_so101_pick_place" / "manifest.json").read_text())
    assert set(schema["required"]) <= manifest.keys() <= schema["properties"].keys()
