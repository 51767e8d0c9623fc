"""The floor plan, counted: rooms, arrows and floors of each package, its cycles, and the lines in every folder."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from scripts.rig.bench import reach

ROOT = Path(__file__).resolve().parents[2]
MOST = {"edge_runtime": (20, 90), "policy_server": (11, 24)}  # rooms and arrows that a package may have
Arrows = dict[str, set[str]]


def arrows(package: str) -> Arrows:
    """Room -> rooms whose modules it imports, at module level or in functions; a room is a file or a folder."""
    found: Arrows = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        if "_pb2" in path.name or path == ROOT / package / "__init__.py":
            continue
        here = _room(".".join(path.relative_to(ROOT).with_suffix("").parts), package)
        found.setdefault(here, set()).update(
            room for name in imports(path) if (room := _room(name, package)) not in ("", here)
        )
    for rooms in list(found.values()):
        for room in rooms:
            found.setdefault(room, set())  # the compiled module
    return found


def imports(path: Path) -> Iterator[str]:
    """The modules and names that a file imports, absolute."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _room(name: str, package: str) -> str:
    """The room that a dotted name leads into; nothing for the package itself, or for a name that lies in no room."""
    parts = name.split(".")
    if parts[0] != package or len(parts) < 2:
        return ""
    place = ROOT / package / parts[1]
    return parts[1] if place.is_dir() or any(place.parent.glob(f"{parts[1]}.py*")) else ""


def floors(graph: Arrows) -> int:
    """The longest way through the arrows, in rooms. ValueError names a cycle."""
    height: dict[str, int] = {}

    def climb(room: str, way: tuple[str, ...]) -> int:
        if room in way:
            raise ValueError(" -> ".join((*way[way.index(room) :], room)))
        if room not in height:
            height[room] = 1 + max((climb(below, (*way, room)) for below in graph[room]), default=0)
        return height[room]

    return max(climb(room, ()) for room in graph)


def lines(folder: str) -> int:
    """Lines of Python and Cython in `folder`, generated files aside."""
    files = (path for kind in ("*.py", "*.pyx", "*.pxi") for path in (ROOT / folder).rglob(kind))
    return sum(path.read_bytes().count(b"\n") for path in files if "_pb2" not in path.name)


def main() -> int:
    missed = 0
    for package, (most_rooms, most_arrows) in MOST.items():
        graph = arrows(package)
        edges = sum(map(len, graph.values()))
        try:
            cycle, high = "no cycle", floors(graph)
        except ValueError as error:
            cycle, high = f"CYCLE {error}", 0
        met = len(graph) <= most_rooms and edges <= most_arrows and high > 0
        missed += not met
        print(
            f"{package}: {len(graph)} rooms (at most {most_rooms}), {edges} arrows (at most {most_arrows}), "
            f"{high} floors, {cycle}: {'met' if met else 'MISSED'}"
        )
    print(
        "lines:",
        ", ".join(
            f"{name} {lines(name)}" for name in ("edge_runtime", "policy_server", "cython_ext", "scripts", "tests")
        ),
    )
    ours, server = lines("scripts"), lines("policy_server")
    reach(f"scripts has {ours} lines, fewer than policy_server's {server}", ours < server)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
