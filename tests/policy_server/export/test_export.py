"""Whole exports through the command: the same policy as LeRobot's, in a folder that a server can load anywhere."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from policy_server import bundle
from policy_server.engines import open_engine
from policy_server.engines.providers import Runtime
from policy_server.export import exporter, policies
from policy_server.export.cli import main
from policy_server.export.parity import MAX_NORMALISED, MAX_UNITS
from tests.policy_server.export.conftest import LARGE, SMALL, arguments, folder_of

pytestmark = pytest.mark.export
BundleOf = Callable[..., Path]
ALL = (
    *("act_so101_pick_place", "smolvla_tiny", "diffusion_tiny/ddim", "act_so101_cubes", "act_random"),
    *("pi0_tiny", "pi05_tiny", "diffusion_tiny/ddpm", "diffusion_tiny/single"),
)
GUIDED = ("smolvla_tiny", "pi0_tiny", "pi05_tiny")


@pytest.mark.parametrize("name", ALL)
def test_answers_as_lerobot_did(name: str, bundle_of: BundleOf) -> None:
    parity = json.loads((bundle_of(name) / "manifest.json").read_text())["parity"]
    assert parity["cases"] == 14  # thirteen alone, three together
    assert "reference.npz" in parity["references"]
    assert len(parity["references"]) == (13 if name in GUIDED else 1)  # with guided real-time chunking
    for found in (parity, *parity["references"].values()):
        if not name.startswith("pi"):  # a normalised unit of theirs is 57 degrees
            assert found["max_abs"] <= MAX_UNITS
        assert found["max_abs_normalised"] <= MAX_NORMALISED


@pytest.mark.parametrize("name", ALL[:2])
def test_nothing_in_it_says_where_it_was_made(name: str, bundle_of: BundleOf) -> None:
    places = [str(place).encode() for place in (SMALL, LARGE, Path.home(), Path(__file__).parents[3])]
    for path in bundle_of(name).iterdir():
        content = path.read_bytes()
        assert not any(place in content for place in [*places, b"site-packages", b".py"]), path.name


def test_the_manifest_says_what_the_user_stated(bundle_of: BundleOf) -> None:
    loaded = bundle.load(bundle_of("act_so101_pick_place"))
    assert [joint.name for joint in loaded.policy.joints][:2] == ["shoulder_pan.pos", "shoulder_lift.pos"]
    assert {joint.unit for joint in loaded.policy.joints[:5]} == {"degrees"}
    assert loaded.policy.joints[5].unit == "percent"
    assert loaded.policy.fps == 30
    assert loaded.policy.extra_state[0].name == "observation.environment_state"
    provenance = loaded.manifest.provenance
    assert provenance["checkpoint"] == "act_so101_pick_place"
    assert provenance["stated_by_user"] == {"fps": 30.0, "joints": "robot.type"}
    assert {"torch", "onnx", "onnxruntime", "opset", "edge_runtime", "weights_sha256"} <= provenance.keys()


def test_names_and_units_of_another_robot(tmp_path: Path) -> None:
    folder = folder_of("act_so101_pick_place")
    stated = ["--names=a,b,c,d,e,f", "--units=radians", "--fps=50", "--opset=20"]
    assert main([str(folder), f"--output={tmp_path / 'other'}", *stated]) == 0
    loaded = bundle.load(tmp_path / "other")
    assert [(joint.name, joint.unit) for joint in loaded.policy.joints] == [(name, "radians") for name in "abcdef"]
    assert loaded.policy.fps == 50
    assert onnx.load(loaded.graphs["policy"]).opset_import[0].version == 20


def test_half_the_bytes_cost_little(bundle_of: BundleOf) -> None:
    whole, half = (bundle_of("act_so101_pick_place", f"--precision={p}") for p in ("fp32", "fp16"))
    sizes = [(folder / "policy.onnx").stat().st_size for folder in (whole, half)]
    assert sizes[1] < 0.56 * sizes[0]
    parity = json.loads((half / "manifest.json").read_text())["parity"]
    assert parity["max_abs_normalised"] <= MAX_NORMALISED  # the graph against torch with the same rounded weights
    assert 0 < parity["rounding"]["max_abs_normalised"] < 0.01


def test_frames_of_another_size_are_resized_in_the_graph(tmp_path: Path) -> None:
    output = tmp_path / "wide"
    assert main(arguments("smolvla_tiny", output, "--image_size.front=160x120")) == 0
    loaded = bundle.load(output)
    assert [(camera.name, camera.height, camera.width) for camera in loaded.policy.cameras] == [
        ("front", 120, 160),
        ("wrist", 96, 128),
    ]


def test_weights_beside_the_graph_load_after_the_folder_was_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("policy_server.export.graph.MAX_INLINE_BYTES", 1 << 20)  # instead of 2 GB
    assert main(arguments("act_so101_pick_place", tmp_path / "made")) == 0
    shutil.move(tmp_path / "made", tmp_path / "moved")
    loaded = bundle.load(tmp_path / "moved")
    assert "policy.onnx.data" in loaded.manifest.files
    assert loaded.graphs["policy"].stat().st_size < 1 << 20
    assert main([f"--check={tmp_path / 'moved'}"]) == 0


def test_weights_are_not_in_memory_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[torch.nn.Parameter] = []
    at_opening: list[int] = []

    def watched(*arguments: Any) -> Any:
        policy = policies.build(*arguments)
        kept.extend(policy.module.parameters())
        return policy

    def opened(*arguments: Any) -> Any:
        at_opening.append(sum(parameter.untyped_storage().nbytes() for parameter in kept))
        return open_engine(*arguments)

    monkeypatch.setattr(exporter, "build", watched)
    monkeypatch.setattr(exporter, "open_engine", opened)
    assert main(arguments("act_so101_pick_place", tmp_path / "made")) == 0
    assert len(kept) > 10
    assert at_opening == [0]


def test_temporal_ensembling_is_recorded(copy: Callable[[str], Path], tmp_path: Path) -> None:
    from tests.policy_server.export.conftest import edit

    edit(copy("act_so101_pick_place") / "config.json", temporal_ensemble_coeff=0.01, n_action_steps=1)
    stated = ["--robot.type=so101_follower", "--fps=30", f"--output={tmp_path / 'made'}"]
    assert main([str(tmp_path / "act_so101_pick_place"), *stated]) == 0
    assert bundle.load(tmp_path / "made").policy.temporal_ensemble_coeff == 0.01


def test_tokens_may_be_left_free(bundle_of: BundleOf) -> None:
    loaded = bundle.load(bundle_of("smolvla_tiny", "--dynamic"))
    shape = onnx.load(loaded.graphs["prefix"]).graph.input[3].type.tensor_type.shape
    assert [dimension.dim_param for dimension in shape.dim] == ["batch", "length"]
    pair = loaded.reference()
    actions = pair.pop("action")
    dynamic = open_engine(loaded, Runtime("cpu"))
    padded = open_engine(bundle.load(bundle_of("smolvla_tiny")), Runtime("cpu"))
    for text in ("pick up the red cube", "go", "put the small green block into the box on the left side of the table"):
        pair["task"] = np.array([text])
        np.testing.assert_allclose(dynamic.infer(pair), padded.infer(pair), atol=2e-4)
    assert actions.shape == padded.infer(pair).shape
