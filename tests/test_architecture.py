"""The arrows between the rooms: who may import whom, read from the source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# A leaf imports only leaves before it.
LEAVES = (
    "errors",
    "slot",
    "timing",
    "schema",
    "checks",
    "output",
    "flags",
    "input_file",
    "json_file",
    "notify",
    "systemd",
    "credentials",
    "ending",
    "exposition",
    "logs",
)

FORBIDDEN = {
    "edge_runtime": ("policy_server", "torch", "onnxruntime", "onnx", "lerobot", "transformers"),
    "edge_runtime/wire": tuple(
        f"edge_runtime.{room}" for room in ("robots", "cameras", "motors", "runtime", "observer", "stream", "config")
    ),
    "edge_runtime/motors": ("edge_runtime.robots", "edge_runtime.runtime", "edge_runtime.wire"),
    "edge_runtime/cameras": ("edge_runtime.robots", "edge_runtime.runtime", "edge_runtime.wire"),
    "policy_server": ("torch", "lerobot", "transformers", "torchvision"),
}
ALLOWED = {"policy_server": ("edge_runtime.wire", *(f"edge_runtime.{leaf}" for leaf in LEAVES))}


def modules(room: str) -> list[Path]:
    return [path for path in sorted((ROOT / room).rglob("*.py")) if "_pb2" not in path.name]


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def reaches(name: str, room: str) -> bool:
    return name == room or name.startswith(room + ".")


@pytest.mark.parametrize("room", FORBIDDEN)
def test_room_does_not_import_what_is_not_its_own(room: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules(room)
        if not (room == "policy_server" and "export" in path.parts)
        for name in imports(path)
        for other in FORBIDDEN[room]
        if reaches(name, other)
    ]
    assert wrong == []


def test_server_takes_only_the_wire_and_the_leaves_of_the_edge() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules("policy_server")
        for name in imports(path)
        if reaches(name, "edge_runtime") and name != "edge_runtime"
        if not any(reaches(name, allowed) for allowed in ALLOWED["policy_server"])
    ]
    assert wrong == []


def test_only_the_export_imports_torch() -> None:
    users = [path for path in modules("policy_server") if any(reaches(name, "torch") for name in imports(path))]
    assert users, "the walk finds nothing"
    assert all("export" in path.parts for path in users)


@pytest.mark.parametrize("leaf", LEAVES)
def test_a_leaf_imports_no_room(leaf: str) -> None:
    allowed = [f"edge_runtime.{other}" for other in LEAVES[: LEAVES.index(leaf)]]
    names = [name for name in imports(ROOT / "edge_runtime" / f"{leaf}.py") if reaches(name, "edge_runtime")]
    assert [name for name in names if name != "edge_runtime" and not any(reaches(name, a) for a in allowed)] == []
