"""The engine `flow` on graphs small enough to know the answer: with and without a prefix, guided and not."""

from __future__ import annotations

from pathlib import Path

import grpc
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edge_runtime.errors import ModelError
from edge_runtime.wire.messages import Chunk, Guidance
from policy_server import bundle
from policy_server.engines import open_engine
from policy_server.engines.flow import FlowEngine
from policy_server.engines.guidance import weights
from policy_server.engines.providers import Runtime
from scripts.rig.bundles import JOINTS, write_manifest
from scripts.rig.robots import Robot, hello_to, look, refusal
from tests.policy_server.conftest import serving

CPU = Runtime("cpu", threads=1)
CHUNK, STEPS = 4, 5
FLOAT, BATCH = TensorProto.FLOAT, "batch"
STATE = "observation.state"


def save(path: Path, nodes: list[onnx.NodeProto], inputs: dict[str, list], outputs: dict[str, list], **numbers) -> None:
    def described(values: dict[str, list]) -> list[onnx.ValueInfoProto]:
        kinds = {"step": TensorProto.INT64}
        return [helper.make_tensor_value_info(name, kinds.get(name, FLOAT), shape) for name, shape in values.items()]

    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in numbers.items()]
    graph = helper.make_graph(nodes, path.stem, described(inputs), described(outputs), constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def write_flow(folder: Path, *, prefix: bool, guided: bool = False, **manifest: object) -> Path:
    """x halves its distance to the state at each step: action = state + (noise - state) / 2**steps.

    Guided, `weights * gain[step]` of the distance to `previous` comes on top of that.
    """
    folder.mkdir()
    joints = len(JOINTS)
    x = [BATCH, CHUNK, joints]
    seen = "wanted" if prefix else STATE
    inputs = {"x": x, "step": [1], seen: [BATCH, joints]}
    node = helper.make_node
    nodes = [
        node("Unsqueeze", [seen, "one"], ["target"]),
        node("Add", ["x", "target"], ["sum"]),
        node("Mul", ["sum", "half"], ["moved"]),
    ]
    last = "moved"
    if guided:
        inputs |= {"previous": x, "weights": [BATCH, CHUNK], "gain": [BATCH, STEPS]}
        nodes += [
            node("Gather", ["gain", "step"], ["hard"], axis=1),
            node("Mul", ["weights", "hard"], ["pull"]),
            node("Unsqueeze", ["pull", "two"], ["pulls"]),
            node("Sub", ["previous", "moved"], ["error"]),
            node("Mul", ["error", "pulls"], ["correction"]),
            node("Add", ["moved", "correction"], ["guided"]),
        ]
        last = "guided"
    else:
        nodes += [node("Cast", ["step"], ["unused"], to=FLOAT)]
    nodes += [node("Identity", [last], ["next"]), node("Identity", [last], ["action"])]
    numbers = {"one": np.array([1]), "two": np.array([2]), "half": np.array(0.5, np.float32)}
    save(folder / "step.onnx", nodes, inputs, {"next": x, "action": x}, **numbers)
    graphs = {"step": "step.onnx"}
    if prefix:
        graphs["prefix"] = "prefix.onnx"
        state = [BATCH, joints]
        save(folder / "prefix.onnx", [node("Identity", [STATE], ["wanted"])], {STATE: state}, {"wanted": state})
    write_manifest(
        folder,
        {
            "format": 2,
            "name": "flow",
            "type": "flow",
            "precision": "fp32",
            "joints": [{"name": joint, "unit": "degrees"} for joint in JOINTS],
            "cameras": [],
            "extra_state": [],
            "chunk_size": CHUNK,
            "action_dim": joints,
            "fps": 30.0,
            "uses_task": False,
            "temporal_ensemble_coeff": None,
            "robot_type": None,
            "graphs": graphs,
            "provenance": {},
            "parity": {},
            "guided": guided,
            "action_scaling": {"scale": [1.0] * joints, "offset": [0.0] * joints},
            "steps": 0 if guided else STEPS,
        }
        | manifest,
    )
    return folder


def opened(folder: Path) -> FlowEngine:
    engine = open_engine(bundle.load(folder), CPU)
    assert isinstance(engine, FlowEngine)
    return engine


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("batch", [1, 3])
def test_the_steps_are_run_and_each_member_gets_its_own(tmp_path: Path, prefix: bool, batch: int) -> None:
    engine = opened(write_flow(tmp_path / "flow", prefix=prefix))
    engine.warm_up([1, batch], lambda progress: None)
    random = np.random.default_rng(0)
    state = random.standard_normal((batch, len(JOINTS))).astype(np.float32)
    noise = random.standard_normal((batch, CHUNK, len(JOINTS))).astype(np.float32)
    for _ in range(2):  # the second run begins where the first did
        actions = engine.infer({STATE: state, "noise": noise})
        np.testing.assert_allclose(actions, state[:, None] + (noise - state[:, None]) / 2**STEPS, atol=1e-6)


def test_without_noise_the_seed_draws_it(tmp_path: Path) -> None:
    engine = opened(write_flow(tmp_path / "flow", prefix=False))
    state = np.zeros((1, len(JOINTS)), np.float32)
    first, other, again = (engine.infer({STATE: state, "seed": np.array([[seed]])}) for seed in (3, 4, 3))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_guided_flow_has_as_many_steps_as_gain_and_weights_of_zero_guide_nowhere(tmp_path: Path) -> None:
    plain = opened(write_flow(tmp_path / "plain", prefix=True))
    guided = opened(write_flow(tmp_path / "guided", prefix=True, guided=True))
    batch = {STATE: np.ones((2, len(JOINTS)), np.float32), "noise": np.zeros((2, CHUNK, len(JOINTS)), np.float32)}
    np.testing.assert_array_equal(guided.infer(batch), plain.infer(batch))
    held = np.zeros((2, CHUNK), np.float32)
    held[0, :2] = 0.1  # of the first member, the first two rows
    pulled = guided.infer(batch | {"previous": np.full((2, CHUNK, len(JOINTS)), 9.0, np.float32), "weights": held})
    assert (pulled[0, :2] > 2).all()
    np.testing.assert_array_equal(pulled[0, 2:], plain.infer(batch)[0, 2:])
    np.testing.assert_array_equal(pulled[1], plain.infer(batch)[1])


@pytest.mark.parametrize(
    ("flow", "said"),
    [
        ({"prefix": False, "steps": 0}, "steps: 0 is not the number of steps of "),
        ({"prefix": True, "guided": True, "steps": 7}, "steps: 7 is not 5, as gain has"),
        ({"prefix": True, "graphs": {}}, "graphs.step: is missing"),
        ({"prefix": True, "graphs": {"step": "step.onnx"}}, "step.onnx: inputs: ['step', 'wanted', 'x'] are not ['obs"),
        ({"prefix": False, "guided": True, "action_scaling": None}, "action_scaling: is missing, and guided needs it"),
        ({"prefix": False, "uses_task": True}, "graphs.prefix: is missing, and uses_task needs it"),
        ({"prefix": True, "graphs": {"step": "prefix.onnx"}}, "prefix.onnx: inputs: "),
    ],
)
def test_what_does_not_fit_together_is_refused(tmp_path: Path, flow: dict, said: str) -> None:
    folder = write_flow(tmp_path / "flow", **flow)
    with pytest.raises(ModelError) as caught:
        open_engine(bundle.load(folder), CPU)
    assert said in str(caught.value)


def test_a_guided_bundle_needs_a_graph_that_can_be_guided(tmp_path: Path) -> None:
    folder = write_flow(tmp_path / "flow", prefix=False)
    plain = (folder / "step.onnx").read_bytes()
    guided = write_flow(tmp_path / "guided", prefix=False, guided=True, steps=STEPS)
    (guided / "step.onnx").write_bytes(plain)
    import json

    manifest = json.loads((guided / "manifest.json").read_text())
    del manifest["files"]
    write_manifest(guided, manifest)
    with pytest.raises(ModelError, match=r"guided: has no inputs \['gain', 'previous', 'weights'\]"):
        open_engine(bundle.load(guided), CPU)


def test_a_plan_on_the_wire_guides_as_its_normalised_self_does_and_plain_robots_are_served_beside(
    tmp_path: Path,
) -> None:
    joints = len(JOINTS)
    scale, offset = [2.0] * joints, [5.0] * joints
    folder = write_flow(tmp_path / "flow", prefix=True, guided=True, action_scaling={"scale": scale, "offset": offset})
    engine = opened(folder)
    plan = np.arange(3 * joints, dtype=np.float32).reshape(3, joints)
    plan[1] = np.nan  # a row that is not planned
    batch = {STATE: np.zeros((1, joints), np.float32), "seed": np.array([[7]])}
    held = weights("linear", 1, 3, CHUNK)[None] * np.array([[1, 0, 1, 0]], np.float32)
    previous = (np.nan_to_num(plan[[0, 1, 2, 2]]) - 5) / 2
    previous[1] = -2.5
    expected = engine.infer(batch | {"previous": previous[None].astype(np.float32), "weights": held})
    plain = engine.infer(batch)
    assert not np.allclose(expected, plain)
    with serving(folder) as server:
        policy = bundle.load(folder).policy
        assert policy.guided
        asked = look(1, timestep=7, state=0.0, plan=plan, delay=1)
        with (
            Robot(server.address, hello_to(policy, guidance=Guidance("linear"))) as guided,
            Robot(server.address, hello_to(policy)) as other,
        ):
            guided.welcomed()
            other.welcomed()
            for robot in (guided, other):
                robot.send(asked)
            for robot, actions in ((guided, expected), (other, plain)):
                chunk = robot.receive()
                assert isinstance(chunk, Chunk)
                np.testing.assert_allclose(chunk.actions, actions[0], atol=1e-5)


def test_guidance_of_a_policy_that_cannot_be_guided_is_refused(tmp_path: Path) -> None:
    folder = write_flow(tmp_path / "flow", prefix=True)
    with serving(folder) as server:
        hello = hello_to(bundle.load(folder).policy, guidance=Guidance())
        code, said = refusal(server.address, hello)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert said == "guidance: policy flow cannot be guided (--rtc.enabled=false)"
