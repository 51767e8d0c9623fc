"""The arrows between the rooms: who may import whom, read from the source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from scripts.benches import house

ROOT = Path(__file__).resolve().parent.parent
# From the ground up: a room imports only rooms that stand before it.
FLOORS = {
    "edge_runtime": (
        *("errors", "slot", "timing", "_realtime", "program", "config", "wire"),
        *("cameras", "motors", "planning", "robots", "virtual_arm", "acting", "link", "reporting"),
        *("episodes", "runtime", "tools", "cli", "__main__"),
    ),
    "policy_server": (
        *("bundle", "engines", "config", "export", "door", "serving", "admin", "metrics", "server", "cli", "__main__"),
    ),
}
FORBIDDEN = {
    "edge_runtime": ("policy_server", "torch", "onnxruntime", "onnx", "lerobot", "transformers"),
    "policy_server": ("torch", "lerobot", "transformers", "torchvision"),
}
LEROBOT = ROOT / "policy_server" / "engines" / "lerobot.py"
SHARED = ("wire", "program", "errors", "slot", "timing")  # what the server takes from the robot's side


def modules(room: str) -> list[Path]:
    return [path for path in sorted((ROOT / room).rglob("*.py")) if "_pb2" not in path.name]


def imports(path: Path) -> set[str]:
    return {name for node in ast.walk(ast.parse(path.read_text())) for name in imported(node)}


def imported(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return set()


def reaches(name: str, room: str) -> bool:
    return name == room or name.startswith(room + ".")


@pytest.mark.parametrize("room", FORBIDDEN)
def test_room_does_not_import_what_is_not_its_own(room: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules(room)
        if not (room == "policy_server" and ("export" in path.parts or path == LEROBOT))
        for name in imports(path)
        for other in FORBIDDEN[room]
        if reaches(name, other)
    ]
    assert wrong == []


def test_server_takes_only_the_shared_rooms_of_the_edge() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules("policy_server")
        for name in imports(path)
        if reaches(name, "edge_runtime") and name != "edge_runtime"
        if not any(reaches(name, f"edge_runtime.{room}") for room in SHARED)
    ]
    assert wrong == []


def test_only_the_export_and_lerobots_engine_import_torch() -> None:
    users = [path for path in modules("policy_server") if any(reaches(name, "torch") for name in imports(path))]
    assert users, "the walk finds nothing"
    assert all("export" in path.parts or path == LEROBOT for path in users)


def test_lerobots_engine_imports_torch_and_lerobot_only_when_a_policy_is_opened() -> None:
    at_import = {name for node in ast.parse(LEROBOT.read_text()).body for name in imported(node)}
    assert not [name for name in at_import for other in FORBIDDEN["policy_server"] if reaches(name, other)]


@pytest.mark.parametrize("package", FLOORS)
def test_a_room_imports_only_rooms_below_it(package: str) -> None:
    floors = FLOORS[package]
    graph = house.arrows(package)
    assert set(graph) == set(floors)
    wrong = [
        f"{package}.{room} imports {package}.{other}"
        for room, others in graph.items()
        for other in others
        if floors.index(other) >= floors.index(room)
    ]
    assert wrong == []


@pytest.mark.parametrize("package", FLOORS)
def test_the_house_has_no_more_rooms_and_arrows_than_it_may(package: str) -> None:
    rooms, arrows = house.MOST[package]
    graph = house.arrows(package)
    assert len(graph) <= rooms
    assert sum(map(len, graph.values())) <= arrows
