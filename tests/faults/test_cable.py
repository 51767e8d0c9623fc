"""The network between robot and policy server fails for real, between two network namespaces: what the arm is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from pathlib import Path
from time import monotonic as now

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from scripts.rig.bundles import write_manifest
from scripts.rig.program import Edge, Server
from scripts.rig.proxy import Link, Proxy
from tests.faults.bench import FPS, ROWS, SO101, STEP, TICKS_PER_UNIT, ArmBench, arm
from tests.faults.cable import ONE_MEGABIT, Cable, laid, missing_capabilities
from tests.faults.test_camera_faults import Film

pytestmark = pytest.mark.skipif(
    bool(missing_capabilities()), reason=f"network namespaces need {' and '.join(missing_capabilities())}"
)

INFERENCE_S = 0.1
FRESH_S = 3.0 + INFERENCE_S  # from the end of a fault to the first new action
OLDEST_S = ROWS / FPS + 1  # what max_action_age_s is by default
HEIGHT, WIDTH = 120, 160


def noise(number: int) -> npt.NDArray[np.uint8]:
    """A picture that compresses badly: some 20 kB."""
    return np.random.default_rng(number).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)


def write_swing(folder: Path) -> Path:
    """A bundle whose chunk is a wave of ten units, whatever it sees: every row is another goal than the one before."""
    folder.mkdir()
    rows = np.tile(10 * np.sin(2 * np.pi * (np.arange(ROWS) + 0.2) / ROWS)[:, None], (1, 6)).astype(np.float32)
    rows[:, 5] += 50
    inputs = [
        helper.make_tensor_value_info("observation.state", TensorProto.FLOAT, ["batch", 6]),
        helper.make_tensor_value_info("observation.images.front", TensorProto.UINT8, ["batch", HEIGHT, WIDTH, 3]),
    ]
    constants = {
        "rows": rows[None],
        "zero": np.zeros(1, np.float32),
        "axis": np.array([1]),
        "column": np.array([-1, 1, 1]),
    }
    nodes = [
        helper.make_node("Cast", ["observation.images.front"], ["picture"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["picture"], ["mean"], axes=[1, 2, 3]),
        helper.make_node("Reshape", ["mean", "column"], ["seen"]),
        helper.make_node("Unsqueeze", ["observation.state", "axis"], ["state"]),
        helper.make_node("Add", ["state", "seen"], ["all"]),
        helper.make_node("Mul", ["all", "zero"], ["nothing"]),
        helper.make_node("Add", ["rows", "nothing"], ["action"]),
    ]
    output = helper.make_tensor_value_info("action", TensorProto.FLOAT, ["batch", ROWS, 6])
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "swing", inputs, [output], tensors)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "swing.onnx"
    )
    manifest = {
        "format": 1,
        "name": "swing",
        "type": "act",
        "precision": "fp32",
        "joints": [{"name": joint.name, "unit": joint.unit} for joint in SO101],
        "cameras": [{"name": "front", "height": HEIGHT, "width": WIDTH}],
        "extra_state": [],
        "chunk_size": ROWS,
        "action_dim": 6,
        "fps": FPS,
        "uses_task": False,
        "temporal_ensemble_coeff": None,
        "robot_type": None,
        "graphs": {"policy": "swing.onnx"},
        "provenance": {},
        "parity": {},
    }
    write_manifest(folder, manifest)
    return folder


@pytest.fixture(scope="module")
def cable() -> Iterator[Cable]:
    with laid() as cable:
        yield cable


@pytest.fixture(scope="module")
def server(cable: Cable, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    flags = (str(write_swing(folder / "swing")), "--insecure=true", "--threads=1")
    with cable.server.hosting(lambda: Server(folder, *flags, listen=f"{cable.server.address}:0")) as server:
        yield server


@contextmanager
def at_work(cable: Cable, address: str, folder: Path) -> Iterator[tuple[ArmBench, Edge]]:
    """An arm with a camera and its runtime on the robot's side; afterwards no action was executed that was too old."""
    with arm(folder) as (bus, log), cable.robot.hosting(lambda: Film(noise)) as film:
        rig = ArmBench(folder, bus, log, address)
        camera = f"{{front: {{type: opencv, index_or_path: '{film.url}', fps: {FPS}}}}}"
        flags = (f"--robot.cameras={camera}", "--insecure=true")
        with cable.robot.hosting(lambda: rig.start(*flags)) as edge:
            edge.wait_for("-> running")
            yield rig, edge
            assert edge.end() == 0, edge.text
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["action_age_s"]["max"] <= OLDEST_S


@pytest.fixture
def work(cable: Cable, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ArmBench, Edge]]:
    """A run of its own for each fault: a second one within the same bad spell would not be told again."""
    with at_work(cable, server.address, tmp_path_factory.mktemp("arm")) as work:
        yield work


def moves(rig: ArmBench, since_s: float) -> list[bool]:
    """Of each goal written since then, whether it is another than the one before; and no step is too long."""
    way = rig.goals(since_s)
    for earlier, later in pairwise(way):
        assert all(abs(later[servo] - earlier[servo]) <= STEP * TICKS_PER_UNIT[servo] for servo in later)
    return [earlier != later for earlier, later in pairwise(way)]


def last_move_s(rig: ArmBench, since_s: float) -> float:
    writes = [entry for entry in rig.log.writes("Goal_Position") if entry.time_s >= since_s]
    return max(later.time_s for earlier, later in pairwise(writes) if earlier.values != later.values)


@pytest.mark.parametrize("fault", [Cable.out, Cable.black_hole])
def test_without_a_network_the_plan_is_executed_then_the_arm_holds_and_goes_on_when_it_is_back(
    cable: Cable, work: tuple[ArmBench, Edge], fault: Callable[[Cable], AbstractContextManager[None]]
) -> None:
    rig, edge = work
    wait_until_it_moves(rig)
    lines = len(edge.lines)
    with fault(cable):
        cut_s = now()
        edge.wait_for("-> holding")
        if not any("no stream: " in line for line in edge.lines[lines:]):
            edge.wait_for("no stream: ")  # given up: what follows are fresh connections
        assert last_move_s(rig, cut_s) - cut_s <= OLDEST_S
        executed = moves(rig, cut_s)
        assert sum(executed) >= 5
        assert not any(executed[-10:])
    back_s = now()
    edge.wait_for("holding -> running")
    rig.wait_for_goals(5)
    gone_on = moves(rig, back_s)
    assert gone_on.index(True) <= FRESH_S * FPS
    assert rig.torque == [1] * 6


def test_a_line_of_one_megabit(cable: Cable, work: tuple[ArmBench, Edge]) -> None:
    """A picture takes longer than four ticks: fewer observations, and the arm goes on."""
    if not cable.server.can("tc", "qdisc", "replace", "dev", "lo", "root", *ONE_MEGABIT):  # which carries nothing
        pytest.skip("this kernel has no tbf")
    rig, edge = work
    wait_until_it_moves(rig)
    with cable.one_megabit():
        goes_on(rig, edge)
        assert cable.held_back() > 0


def test_a_line_that_loses_one_packet_in_twenty(cable: Cable, work: tuple[ArmBench, Edge]) -> None:
    """What TCP repeats comes late; a user-space proxy could not lose it, since it sees a stream and no packets."""
    if not cable.robot.can("nft", "list ruleset"):
        pytest.skip("needs nftables")
    rig, edge = work
    wait_until_it_moves(rig)
    with cable.loss(percent=5):
        goes_on(rig, edge)
        until_s = now() + 30
        while not cable.lost() and now() < until_s:  # of the few packets of two seconds none may have been lost
            rig.wait_for_goals(FPS)
        assert cable.lost() > 0


def test_a_line_of_300_ms_and_200_ms_of_jitter(cable: Cable, server: Server, tmp_path: Path) -> None:
    """By a proxy, since few kernels have netem: half of it on the way there, half on the way back."""
    with (
        cable.robot.hosting(lambda: Proxy(server.address, seed=7)) as proxy,
        at_work(cable, proxy.address, tmp_path) as (rig, edge),
    ):
        proxy.link = Link(delay_s=0.05, jitter_s=0.2)
        goes_on(rig, edge)


def wait_until_it_moves(rig: ArmBench) -> None:
    """An earlier fault may have left a hole in the stream."""
    for _ in range(int(FRESH_S * FPS / 3)):
        since_s = now()
        rig.wait_for_goals(3)
        if any(moves(rig, since_s)):
            return
    raise AssertionError(f"no other goal within {FRESH_S:g} s")


def goes_on(rig: ArmBench, edge: Edge) -> None:
    """For two seconds: the stream holds, and so does the motion."""
    lines, began_s = len(edge.lines), now()
    rig.wait_for_goals(2 * FPS)
    assert not [line for line in edge.lines[lines:] if "no stream" in line or "-> fault" in line]
    moved = moves(rig, began_s)
    assert sum(moved) >= len(moved) / 2
