"""The generated protobuf is what `make protos` would generate now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def test_generated_code_is_current(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="the generator is in the extra `dev`")
    subprocess.run(
        [
            *(sys.executable, "-m", "grpc_tools.protoc", "-Iedge_runtime/wire=protos"),
            *(f"--{kind}_out={tmp_path}" for kind in ("python", "pyi")),
            "edge_runtime/wire/policy.proto",
        ],
        cwd=ROOT,
        check=True,
    )
    generated = sorted((tmp_path / "edge_runtime" / "wire").iterdir())
    assert [file.name for file in generated] == ["policy_pb2.py", "policy_pb2.pyi"]
    for file in generated:
        assert file.read_text() == (ROOT / "edge_runtime" / "wire" / file.name).read_text(), f"{file.name}: make protos"
