"""What `import edge_runtime` offers, and that it costs next to nothing until a name is used."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import edge_runtime

EXPORTED = {
    *("run", "StartConfig", "PolicyClient"),
    *("Robot", "Joint", "Camera", "CameraFrame", "Observation", "Chunk"),
    *("EdgeRuntimeError", "ConfigError", "DeviceError", "ActuatorFault", "AccessError", "OutputError"),
    *("StreamError", "ProtocolError", "ModelError"),
}


def test_these_names_are_exported_and_no_others() -> None:
    assert set(edge_runtime.__all__) == EXPORTED
    assert edge_runtime.__all__ == sorted(edge_runtime.__all__)
    assert set(dir(edge_runtime)) >= EXPORTED
    with pytest.raises(AttributeError, match="module 'edge_runtime' has no attribute 'Planner'"):
        _ = edge_runtime.Planner


def test_each_name_is_what_a_type_checker_takes_it_for() -> None:
    """The imports under TYPE_CHECKING and the table of places say the same."""
    tree = ast.parse(Path(edge_runtime.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    told = {
        alias.name: getattr(importlib.import_module(str(node.module)), alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module != "typing"
        for alias in node.names
    }
    assert {name: getattr(edge_runtime, name) for name in EXPORTED} == told


def modules_after(program: str) -> set[str]:
    """What a fresh interpreter has loaded more than one that runs nothing."""
    loaded = [
        set(
            subprocess.run(
                [sys.executable, "-c", f"{lines}\nimport sys; print(*sys.modules)"],
                capture_output=True,
                text=True,
                check=True,
                timeout=60,
            ).stdout.split()
        )
        for lines in ("", program)
    ]
    return loaded[1] - loaded[0]


def test_nothing_is_loaded_until_a_name_is_used() -> None:
    before = modules_after("import edge_runtime")
    assert before == {"edge_runtime"}
    after = modules_after("import edge_runtime; edge_runtime.StreamError")
    assert {name for name in after if name.startswith("edge_runtime")} == {"edge_runtime", "edge_runtime.errors"}
    assert after & {"numpy", "grpc", "cv2", "yaml", "draccus"} == set()
