"""The robot needs neither torch, onnxruntime nor LeRobot, and no part of the server; the server needs no torch."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest

from scripts.rig.bundles import JOINTS, write_bundle
from scripts.rig.program import Edge, Server

HEAVY = ("torch", "lerobot", "transformers", "torchvision")
HOOK = """
import os, sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in os.environ["HIDDEN"].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
"""


def test_what_is_always_installed_holds_none_of_them() -> None:
    always = [each for each in metadata.requires("edge-runtime") or [] if "extra ==" not in each]
    assert always
    assert not [each for each in always if each.startswith((*HEAVY, "onnx"))]


def test_a_robot_runs_at_a_server_where_they_cannot_be_imported(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = write_bundle(tmp_path / "tiny", chunk=30)
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(HOOK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "hook"))
    monkeypatch.setenv("HIDDEN", ",".join(HEAVY))
    with Server(folder, str(bundle)) as server:
        monkeypatch.setenv("HIDDEN", ",".join((*HEAVY, "onnx", "onnxruntime", "tokenizers", "policy_server")))
        joints = json.dumps(dict.fromkeys(JOINTS, "degrees"))
        flags = ("--robot.type=none", f"--robot.joints={joints}", f"--server_address={server.address}")
        with Edge(folder, *flags, "--fps=30") as edge:
            edge.wait_for("-> running")
            assert edge.end() == 0, edge.text
