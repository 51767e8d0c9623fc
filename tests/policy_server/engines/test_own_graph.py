"""`export-onnx MODEL.onnx`: a bundle of any graph from raw observation to chunk, and of a flow's; no torch is there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edge_runtime.errors import ConfigError, ModelError, OutputError, UsageError
from edge_runtime.wire.messages import Camera, ExtraState
from policy_server import bundle
from policy_server.engines import open_engine
from policy_server.engines.providers import Runtime
from policy_server.export import cli
from scripts.rig.bundles import JOINTS, write_bundle
from tests.policy_server.engines.test_flow import STEPS, write_flow

STATED = (f"--names={','.join(JOINTS)}", "--units=degrees", "--fps=25")


def export(model: Path, output: Path, *more: str) -> bundle.Bundle:
    assert cli.run([str(model), f"--output={output}", *STATED, *more]) == 0
    return bundle.load(output)


def test_a_graph_becomes_a_bundle_whose_stored_pair_holds(tmp_path: Path) -> None:
    cameras = [("front", 24, 32)]
    source = write_bundle(tmp_path / "source", cameras=cameras, extra=2, bias=1.0)
    loaded = export(source / "policy.onnx", tmp_path / "mine")
    assert (loaded.policy.name, loaded.policy.type, loaded.policy.fps) == ("mine", "graph", 25.0)
    assert loaded.policy.cameras == (Camera("front", 24, 32),)
    assert loaded.policy.extra_state == (ExtraState("observation.environment_state", 2),)
    assert loaded.policy.chunk_size == 4
    pair = loaded.reference()
    assert len(pair["action"]) > 1
    assert np.ptp(pair["action"]) > 0
    assert cli.run([f"--check={tmp_path / 'mine'}", "--providers=cpu"]) == 0
    assert loaded.manifest.provenance["graph"] == "policy.onnx"


@pytest.mark.parametrize("prefix", [True, False])
def test_a_prefix_and_a_step_become_a_flow(tmp_path: Path, prefix: bool) -> None:
    source = write_flow(tmp_path / "source", prefix=prefix)
    more = [f"--prefix={source / 'prefix.onnx'}"] if prefix else []
    loaded = export(source / "step.onnx", tmp_path / "mine", f"--steps={STEPS}", *more)
    assert (loaded.policy.type, set(loaded.graphs)) == ("flow", {"step", "prefix"} if prefix else {"step"})
    pair = loaded.reference()
    engine = open_engine(loaded, Runtime("cpu", threads=1))
    np.testing.assert_array_equal(engine.infer(pair), pair["action"])


def renamed(kind: str, old: str, new: str) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        for value in getattr(model.graph, kind):
            value.name = value.name.replace(old, new)
        for node in model.graph.node:
            for names in (node.input, node.output):
                names[:] = [name.replace(old, new) if name in (old,) else name for name in names]

    return change


def fix_batch(model: onnx.ModelProto) -> None:
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1


def free_rows(model: onnx.ModelProto) -> None:
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "rows"


def cut(model: onnx.ModelProto) -> None:
    del model.graph.node[0]


def add_input(model: onnx.ModelProto) -> None:
    model.graph.input.append(helper.make_tensor_value_info("mood", TensorProto.FLOAT, ["batch", 1]))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (renamed("output", "action", "actions"), "outputs: ['actions'] have no 'action': (batch, rows, joints)"),
        (renamed("input", "observation.state", "qpos"), "have no 'observation.state': (batch, joints) float32"),
        (fix_batch, "the batch size is fixed at 1; it has to be free"),
        (free_rows, "action: [0, 3] behind the batch are not a number of rows and one of joints"),
        (cut, "the ONNX checker refuses it: "),
        (add_input, "inputs: ['mood', 'observation.state'] are not ['observation.state']"),
    ],
)
def test_a_graph_that_cannot_be_served_is_refused_and_leaves_nothing(
    tmp_path: Path, change: Callable[[onnx.ModelProto], None], said: str
) -> None:
    graph = write_bundle(tmp_path / "source") / "policy.onnx"
    model = onnx.load(graph)
    change(model)
    graph.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError) as caught:
        export(graph, tmp_path / "mine")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize(
    ("flags", "error", "said"),
    [
        (["--names=a,b"], ConfigError, r"names: 2 joints \(a, b\), but observation.state has 3 numbers"),
        (["--output={source}"], OutputError, "exists"),
        (["--fps=0"], ConfigError, "fps: 0 is not in"),
        (["--prefix={source}/no.onnx"], ModelError, "no.onnx: the ONNX checker refuses it"),
    ],
)
def test_what_is_stated_wrongly_is_one_line(tmp_path: Path, flags: list[str], error: Any, said: str) -> None:
    source = write_bundle(tmp_path / "source")
    with pytest.raises(error, match=said):
        export(source / "policy.onnx", tmp_path / "mine", *(flag.format(source=source) for flag in flags))


def test_a_prefix_belongs_to_an_onnx_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="prefix: a flow's prefix and steps belong to an ONNX file"):
        cli.run([str(tmp_path), f"--output={tmp_path / 'mine'}", *STATED, "--steps=3"])
