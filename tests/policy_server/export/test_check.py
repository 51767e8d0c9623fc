"""`export-onnx --check`: what a bundle can prove on another machine."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from edge_runtime.errors import ModelError
from policy_server.bundle import digests
from policy_server.export.cli import main
from policy_server.export.parity import Difference
from tests.policy_server.export.conftest import edit

pytestmark = pytest.mark.export
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = sys.modules["onnx"] = sys.modules["safetensors"] = None
from policy_server.export.cli import main
sys.exit(main([f"--check={sys.argv[1]}"]))
"""


@pytest.fixture(params=["act_so101_pick_place", "smolvla_tiny"])
def made(request: pytest.FixtureRequest, bundle_of: Callable[..., Path], tmp_path: Path) -> Path:
    """A bundle to tamper with."""
    return Path(shutil.copytree(bundle_of(request.param), tmp_path / "bundle"))


def test_needs_no_torch(made: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, made], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "stored pair on CPUExecutionProvider" in done.stdout


def test_a_damaged_graph_is_found(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = max(made.glob("*.onnx"), key=lambda path: path.stat().st_size)
    content = bytearray(graph.read_bytes())
    content[len(content) // 2] ^= 1
    graph.write_bytes(content)
    assert main([f"--check={made}"]) == 65
    assert f"{graph.name}: is damaged" in capsys.readouterr().err


def test_other_answers_are_found(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with np.load(made / "reference.npz") as stored:
        arrays = dict(stored)
    np.savez(made / "reference.npz", **(arrays | {"action": arrays["action"] + np.float32(0.01)}))
    edit(made / "manifest.json", files={name: asdict(each) for name, each in digests(made).items()})
    assert main([f"--check={made}"]) == 65
    assert "actions differ by up to" in capsys.readouterr().err


def test_other_answers_are_found_in_metres_too(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with np.load(made / "reference.npz") as stored:
        arrays = dict(stored)
    np.savez(made / "reference.npz", **(arrays | {"action": arrays["action"] + np.float32(9e-4)}))
    manifest = json.loads((made / "manifest.json").read_text())
    assert len(manifest["parity"]["scale"]) == 6
    files = {name: asdict(each) for name, each in digests(made).items()}
    edit(made / "manifest.json", files=files, parity=manifest["parity"] | {"scale": [30.0] * 6})
    assert main([f"--check={made}"]) == 0  # of degrees: nothing
    edit(made / "manifest.json", parity=manifest["parity"] | {"scale": [0.1] * 6})
    assert main([f"--check={made}"]) == 65
    assert re.search(r"\(9\..*e-03 normalised\)", capsys.readouterr().err)


@pytest.mark.parametrize("scale", ["wide", [1, 2], [1, 2, 3, 4, 5, None], [[1]], {"a": 1}])
def test_a_scale_that_is_none_is_refused(made: Path, scale: object, capsys: pytest.CaptureFixture[str]) -> None:
    parity = json.loads((made / "manifest.json").read_text())["parity"]
    edit(made / "manifest.json", parity=parity | {"scale": scale})
    assert main([f"--check={made}"]) == 65
    assert "is not a number for each joint" in capsys.readouterr().err


def test_a_joint_that_never_moved_hides_no_other() -> None:
    expected = np.zeros((1, 4, 2), np.float32)
    other = expected + np.float32([0, 1e-4])
    difference = Difference.of([expected], [other], np.array([0.0, 1e-2]))
    assert difference.max_abs_normalised == pytest.approx(1e-2)
    still = Difference.of([expected], [expected + np.float32([2e-3, 0])], np.array([0.0, 1e-2]))
    with pytest.raises(ModelError, match=r"2\.00e-03 joint units"):
        still.require("it")  # and is held to 1e-3 units itself
    with pytest.raises(ModelError, match="normalised"):
        difference.require("it")


def test_shipped_bundles_pass() -> None:
    for name in ("act_so101_pick_place", "act_so101_cubes"):
        assert main([f"--check={name}"]) == 0
