"""The server: met, compared and spoken with over a real connection, without an arm that could move."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest

from edge_runtime.cameras import make_camera
from edge_runtime.config import NoRobotConfig, SO101FollowerConfig, StartConfig, SyntheticCameraConfig
from edge_runtime.robots import make_robot
from edge_runtime.tools.doctor import server
from edge_runtime.tools.doctor.finding import Finding
from edge_runtime.wire.messages import Camera, ExtraState, Failure, Joint, Observation, Skipped
from tests.edge_runtime.link.scripted_server import POLICY, ScriptedServer, chunk_for
from tests.edge_runtime.tools.doctor.findings import Findings

Start = Callable[..., ScriptedServer]


@pytest.fixture
def start() -> Iterator[Start]:
    """Servers that end with the test."""
    servers: list[ScriptedServer] = []

    def one(**script: Any) -> ScriptedServer:
        servers.append(ScriptedServer(**script))
        return servers[-1]

    yield one
    for each in servers:
        each.kill()


def visit(scripted: ScriptedServer | None, joints: dict[str, str] | None = None, **settings: Any) -> list[Finding]:
    """As `doctor` does it, with a robot of two joints that stays where it is."""
    robot = NoRobotConfig(joints=joints or {"a.pos": "degrees", "b.pos": "degrees"})
    address = scripted.address if scripted else "127.0.0.1:9"
    config = StartConfig(robot=robot, **{"server_address": address} | settings)
    with ExitStack() as stack:
        met = Findings(server.meet(config, stack))
        if met.result is None:
            return met.all
        opened = stack.enter_context(make_robot(robot))
        compared = Findings(server.compare(config, met.result, opened, {}))
        if compared.result is None:
            return met.all + compared.all
        return [*met.all, *compared.all, server.converse(config, met.result, opened, *compared.result)]


def test_a_server_that_fits(start: Start) -> None:
    seen: list[Observation] = []
    scripted = start(answer=lambda observation: seen.append(observation) or chunk_for(observation))
    found = visit(scripted)
    assert [(each.about, each.state) for each in found] == [
        ("reachable", "ok"),
        ("policy", "ok"),
        ("fits", "ok"),
        ("handshake", "ok"),
    ]
    assert found[1].said == "scripted (act, 000102030405): 10 actions at 30 Hz"
    assert found[2].said.startswith("2 joints, 30 Hz: names, units")
    assert found[3].said.startswith("10 actions in ")
    assert [observation.must_go for observation in seen] == [True] * 5


@pytest.mark.parametrize(
    ("policy", "settings", "said", "mend"),
    [
        (
            {"joints": (Joint("x.pos", "degrees"),)},
            {},
            "joints: robot [a.pos, b.pos], policy [x.pos]",
            "another policy",
        ),
        (
            {"joints": (Joint("a.pos", "degrees"), Joint("b.pos", "radians"))},
            {},
            "unit of b.pos: robot degrees, policy radians",
            "another policy: --model=NAME, or another robot",
        ),
        (
            {"cameras": (Camera("front", 48, 64),)},
            {},
            "policy [front] (--robot.cameras.front.type",
            "flags in brackets",
        ),
        ({"uses_task": True}, {}, "task: robot has none", "the flags in brackets"),
        ({"fps": 50.0}, {}, "fps: robot 30, policy 50 (--fps=50)", "flags in brackets"),
        (
            {"extra_state": (ExtraState("observation.environment_state", 5),)},
            {"extra_state": {"environment_state": "constant:1,2"}},
            "observation.environment_state: robot has 2, policy takes 5 numbers (--extra_state.environment_state=URL)",
            "the flags in brackets",
        ),
        (
            {},
            {"actions_per_chunk": 11},
            "actions_per_chunk: robot 11, policy at most 10",
            "the flags in brackets",
        ),
    ],
)
def test_what_does_not_fit(
    start: Start, policy: dict[str, Any], settings: dict[str, Any], said: str, mend: str
) -> None:
    finding = visit(start(policy=dataclasses.replace(POLICY, **policy)), **settings)[-1]
    assert (finding.about, finding.state, finding.exit_code) == ("fits", "failed", 76)
    assert said in finding.said
    assert mend in finding.mend


def test_what_is_there_is_compared_although_the_rest_is_not(start: Start) -> None:
    """Arm and a camera are missing: the other camera's name and the extra state are told in the same round."""
    wants = {
        "cameras": (Camera("front", 48, 64), Camera("wrist", 48, 64)),
        "extra_state": (ExtraState("observation.environment_state", 5),),
    }
    scripted = start(policy=dataclasses.replace(POLICY, **wants))
    eyes = {name: SyntheticCameraConfig(64, 48) for name in ("front", "wirst")}
    config = StartConfig(robot=SO101FollowerConfig(cameras=eyes), server_address=scripted.address)
    with ExitStack() as stack:
        offer = Findings(server.meet(config, stack)).result
        there = {"wirst": stack.enter_context(make_camera("wirst", eyes["wirst"]))}
        (wrong,) = Findings(server.compare(config, offer, None, there)).all
        assert "(--rename_map.wirst=wrist)" in wrong.said
        assert "(--extra_state.environment_state=URL)" in wrong.said
        assert not any(word in wrong.said for word in ("joints", "camera front"))
        mended = dataclasses.replace(
            config, rename_map={"wirst": "wrist"}, extra_state={"environment_state": "constant:1,2,3,4,5"}
        )
        (right,) = Findings(server.compare(mended, offer, None, there)).all
    assert (right.state, right.said.partition("policy's, ")[2]) == (
        "ok",
        "as far as can be told without front and the arm",
    )


def test_a_policy_that_it_has_not(start: Start) -> None:
    finding = visit(start(), model="other")[-1]
    assert (finding.about, finding.exit_code) == ("policy", 76)
    assert "'other' (it offers scripted)" in finding.said


def test_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PATIENCE_S", 0.2)
    (finding,) = visit(None)
    assert (finding.about, finding.state, finding.exit_code) == ("reachable", "failed", 69)
    assert finding.mend == "on the server: policy-server start BUNDLE --listen=127.0.0.1:9"


def test_an_address_that_is_not_safe() -> None:
    (finding,) = visit(None, server_address="192.0.2.1:8080")
    assert (finding.about, finding.exit_code) == ("reachable", 78)
    assert "beyond loopback" in finding.said


def failure(observation: Observation) -> Failure:
    return Failure(observation.id, grpc.StatusCode.INTERNAL.value[0], "out of memory", "b0b5")


@pytest.mark.parametrize(
    ("script", "code", "said", "mend"),
    [
        ({"answer": failure}, 65, "out of memory (id b0b5)", "the server's log has the same id"),
        ({"answer": lambda seen: Skipped(seen.id, "similar")}, 76, "must go was skipped (similar)", "same version"),
        ({"answer": lambda seen: None}, 69, "no answer within 0.5 s", "the server's log"),
        ({"silent": True}, 69, "", "the server's log"),
        ({"leave_after_welcome": True}, 69, "", "the server's log"),
        ({"refuse": (grpc.StatusCode.FAILED_PRECONDITION, "other names")}, 76, "other names", "the server's log"),
        ({"refuse": (grpc.StatusCode.UNAUTHENTICATED, "no token")}, 77, "no token", "token_file"),
    ],
)
def test_a_conversation_that_goes_wrong(
    start: Start, monkeypatch: pytest.MonkeyPatch, script: dict[str, Any], code: int, said: str, mend: str
) -> None:
    if code == 69:  # nothing that could be waited for will come
        monkeypatch.setattr(server, "ANSWER_S", 0.5)
        monkeypatch.setattr(server, "PATIENCE_S", 0.5)
    finding = visit(start(**script))[-1]
    assert (finding.about, finding.state, finding.exit_code) == ("handshake", "failed", code)
    assert said in finding.said
    assert mend in finding.mend


def test_a_server_slower_than_its_chunks_last(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LOOKS", 2)
    late = threading.Event()  # never set: its wait is the inference
    scripted = start(answer=lambda observation: late.wait(0.35) or chunk_for(observation))
    finding = visit(scripted)[-1]
    assert (finding.about, finding.state, finding.exit_code) == ("handshake", "warning", 0)
    assert "a chunk lasts 333 ms: the arm would stand still" in finding.said
