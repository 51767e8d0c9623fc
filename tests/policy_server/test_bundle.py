"""Bundles: what is loaded is what was written, and everything else is refused in one sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from edge_runtime.errors import ModelError, UsageError
from edge_runtime.wire.messages import Camera, ExtraState, Joint
from policy_server import bundle
from policy_server.engines import open_engine
from policy_server.engines.one_graph import OneGraphEngine
from policy_server.engines.providers import Runtime
from scripts.rig.bundles import write_bundle, write_manifest

CPU = Runtime("cpu", threads=1)


def test_the_policy_is_what_the_manifest_says(seeing: Path) -> None:
    loaded = bundle.load(seeing)
    assert loaded.policy.joints[0] == Joint("shoulder.pos", "degrees")
    assert loaded.policy.cameras == (Camera("front", 24, 32), Camera("wrist", 16, 16))
    assert loaded.policy.extra_state == (ExtraState("observation.environment_state", 2),)
    assert (loaded.policy.chunk_size, loaded.policy.fps, loaded.policy.temporal_ensemble_coeff) == (4, 30.0, 0.0)
    assert loaded.graphs == {"policy": seeing / "policy.onnx"}


def test_the_digest_follows_the_content_and_not_the_layout(tiny: Path, tmp_path: Path) -> None:
    manifest = json.loads((tiny / "manifest.json").read_text())
    copy = shutil.copytree(tiny, tmp_path / "copy")
    (copy / "manifest.json").write_text(json.dumps(dict(reversed(manifest.items())), indent=4))
    assert bundle.load(copy).policy.digest == bundle.load(tiny).policy.digest
    write_manifest(copy, manifest | {"fps": 25.0})
    assert bundle.load(copy).policy.digest != bundle.load(tiny).policy.digest


def drop(field: str) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest.pop(field)


def put(field: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest.update({field: value})


def add(field: str, name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest[field].update({name: value})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (put("format", 3), "manifest.json: format: 3 is not one of 1, 2"),
        (put("format", "1"), "manifest.json: format: '1' is not one of 1, 2"),
        (drop("name"), "manifest.json: name: is missing"),
        (put("name", ""), "name: '' is not text of 1 to 128 printable characters"),
        (put("name", "a\nb"), "name: 'a\\nb' is not text"),
        (put("joints", []), "joints: [] is not a list of at least 1 objects"),
        (put("joints", [{"name": "a.pos"}]), "joints[0].unit: is missing"),
        (put("joints", [{"name": "a", "unit": "m"}] * 2), "joints: ['a', 'a'] is not a list of distinct names"),
        (put("cameras", {"front": 1}), "cameras: {'front': 1} is not a list"),
        (
            put("cameras", [{"name": "f", "height": 0, "width": 1}]),
            "cameras[0].height: 0 is not in 1..",
        ),
        (
            put("extra_state", [{"name": "e", "dimension": True}]),
            "extra_state[0].dimension: true is not a whole number",
        ),
        (put("chunk_size", 1e9), "chunk_size: 1000000000.0 is not a whole number in 1..4096"),
        (put("action_dim", 32), "action_dim: 32 is not 3, the number of joints"),
        (put("fps", float("nan")), "fps: nan is not a number in 0.1..1000"),
        (put("fps", None), "fps: null is not a number"),
        (put("uses_task", 0), "uses_task: 0 is not true or false"),
        (put("temporal_ensemble_coeff", "x"), "temporal_ensemble_coeff: 'x' is not a number"),
        (put("graphs", {"policy": "other.onnx"}), "graphs.policy: 'other.onnx' is not a file that the manifest lists"),
        (put("files", {"../x": {"bytes": 0, "sha256": "0"}}), "files.../x: '../x' is not a path inside the bundle"),
        (
            lambda manifest: manifest["files"].update({"gone.onnx": {"bytes": 0, "sha256": "0"}}),
            "gone.onnx: cannot be read (No such file",
        ),
    ],
)
def test_a_wrong_manifest_is_refused(
    tiny: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None], said: str
) -> None:
    folder = shutil.copytree(tiny, tmp_path / "wrong")
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ModelError) as caught:
        bundle.load(folder)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a manifest"),
        ("[" * 100_000, "is not JSON"),
        (" " * 2_000_000, "more than 1048576 bytes"),
    ],
)
def test_what_is_not_a_manifest_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ModelError, match=said):
        bundle.load(tmp_path)


def test_a_damaged_graph_is_refused(tiny: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny, tmp_path / "damaged")
    data = bytearray((folder / "policy.onnx").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "policy.onnx").write_bytes(data)
    with pytest.raises(ModelError, match=r"policy\.onnx: is damaged"):
        bundle.load(folder)
    (folder / "policy.onnx").write_bytes(data[:-1])
    with pytest.raises(ModelError, match=rf"has {len(data) - 1} bytes, the manifest says {len(data)}"):
        bundle.load(folder)


def test_a_name_that_is_nowhere_is_refused() -> None:
    with pytest.raises(UsageError, match="neither a folder nor a shipped bundle"):
        bundle.locate("no_such_bundle")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"chunk_size": 5}, r"action: tensor\(float\) \[4, 3\] is not tensor\(float\) \[5, 3\]"),
        ({"extra_state": [{"name": "x", "dimension": 1}]}, r"inputs: \['observation.state'\] are not \['observation."),
        ({"fixed_batch": 1}, "the batch size is fixed at 1"),
        ({"graphs": {}}, "graphs.policy: is missing"),
    ],
)
def test_a_graph_that_is_not_what_the_manifest_says_is_refused(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    loaded = bundle.load(write_bundle(tmp_path / "odd", **change))
    with pytest.raises(ModelError, match=said):
        open_engine(loaded, CPU)


@pytest.mark.parametrize(
    ("content", "said"), [(b"\xff" * 1000, "is not an ONNX graph"), (b"\x7a\x02hi" * 99, "onnxruntime cannot load it")]
)
def test_bytes_that_are_no_graph_are_refused(tiny: Path, tmp_path: Path, content: bytes, said: str) -> None:
    folder = shutil.copytree(tiny, tmp_path / "noise")
    (folder / "policy.onnx").write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest.pop("files")
    write_manifest(folder, manifest)
    with pytest.raises(ModelError, match=said) as caught:
        open_engine(bundle.load(folder), CPU)
    assert "\n" not in str(caught.value)


def test_an_unknown_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"type: 'other' is not one of \[act, graph, flow, smolvla, .*\]"):
        open_engine(bundle.load(write_bundle(tmp_path / "other", type="other")), CPU)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_batch_gives_each_member_its_own(seeing: Path, batch: int) -> None:
    loaded = bundle.load(seeing)
    engine = OneGraphEngine(loaded, CPU)
    random = np.random.default_rng(0)
    inputs = {
        name: random.integers(0, 255, (batch, *feature.shape)).astype(feature.dtype)
        for name, feature in bundle.features(loaded.policy).items()
    }
    actions = engine.infer(inputs)
    for member in range(batch):
        means = sum(float(inputs[name][member].mean()) for name in inputs if name != "observation.state")
        expected = inputs["observation.state"][member] + means + 1 + np.arange(4)[:, None] / 8
        np.testing.assert_allclose(actions[member], expected, rtol=1e-5)


@pytest.mark.parametrize("name", sorted(path.name for path in bundle.SHIPPED.glob("*") if path.is_dir()))
def test_a_shipped_bundle_gives_its_stored_actions(name: str) -> None:
    loaded = bundle.load(bundle.locate(name))
    reference = loaded.reference()
    expected = reference.pop("action")
    actions = open_engine(loaded, CPU).infer(reference)
    np.testing.assert_allclose(actions, expected, atol=1e-3)


def with_external_weights(folder: Path) -> None:
    """The graph's constants in a file beside it; the manifest lists what is there."""
    graph = folder / "policy.onnx"
    onnx.save_model(
        onnx.load(graph),
        graph,
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
        convert_attribute=True,
    )
    write_manifest(
        folder, {k: v for k, v in json.loads((folder / "manifest.json").read_text()).items() if k != "files"}
    )


def test_weights_in_another_file_are_part_of_the_bundle(tiny: Path, tmp_path: Path) -> None:
    """They decide over the actions, so that they must be under the digest."""
    folder = shutil.copytree(tiny, tmp_path / "bundle")
    with_external_weights(folder)
    before = bundle.load(folder).policy.digest
    assert "weights.bin" in bundle.load(folder).manifest.files
    (folder / "weights.bin").write_bytes((folder / "weights.bin").read_bytes()[::-1])
    with pytest.raises(ModelError, match="is damaged"):
        bundle.load(folder)
    with_external_weights(shutil.copytree(tiny, tmp_path / "other"))
    assert bundle.load(tmp_path / "other").policy.digest == before


def test_a_file_that_is_not_listed_is_refused_though_no_graph_reads_it(tiny: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny, tmp_path / "bundle")
    loaded = bundle.load(folder)
    (folder / "more").mkdir()
    (folder / "more" / "weights.bin").write_bytes(b"")
    for check in (lambda: bundle.load(folder), loaded.recheck):
        with pytest.raises(ModelError, match=r"files: does not list more/weights\.bin, which is in the folder"):
            check()


def test_a_graph_that_reads_a_file_outside_is_refused(tiny: Path, tmp_path: Path) -> None:
    """The folder then has no file too many."""
    folder = shutil.copytree(tiny, tmp_path / "bundle")
    with_external_weights(folder)
    graph = folder / "policy.onnx"
    (folder / "weights.bin").rename(tmp_path / "weights.bin")
    graph.write_bytes(graph.read_bytes().replace(b"weights.bin", b"../outside1"))
    write_manifest(
        folder, {k: v for k, v in json.loads((folder / "manifest.json").read_text()).items() if k != "files"}
    )
    with pytest.raises(ModelError, match=r"reads '\.\./outside1', which the manifest does not list"):
        bundle.load(folder)


def test_an_installed_package_brings_an_engine_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entry point is the only other way to a type: a module's path in a manifest is a name like any other."""
    (tmp_path / "installed_engine.py").write_text(
        "from policy_server.engines.one_graph import OneGraphEngine\n"
        "def open_engine(bundle, runtime):\n    return OneGraphEngine(bundle, runtime)\n"
    )
    info = tmp_path / "installed_engine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: installed-engine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[policy_server.engines]\nmine = installed_engine:open_engine\nbroken = no_such_module:open_engine\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    mine = bundle.load(write_bundle(tmp_path / "mine", type="mine"))
    assert isinstance(open_engine(mine, CPU), OneGraphEngine)
    for kind, said in (
        ("broken", r"type: 'broken' cannot be loaded: No module named 'no_such_module'"),
        (
            "installed_engine:open_engine",
            r"type: 'installed_engine:open_engine' is not one of \[act, .*, mine, broken\]",
        ),
    ):
        with pytest.raises(ModelError, match=said):
            open_engine(bundle.load(write_bundle(tmp_path / kind.partition(":")[0] / "it", type=kind)), CPU)


def test_a_wheel_without_the_demos_policies_says_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "SHIPPED", tmp_path / "bundles")
    with pytest.raises(UsageError, match=r"act_so101_cubes is not a folder, and .* in its repository"):
        bundle.locate("act_so101_cubes")
