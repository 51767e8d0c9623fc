"""The first words of a stream: who is served, who is refused, with which status and which sentence."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from edge_runtime.errors import ModelError
from edge_runtime.wire import codec
from edge_runtime.wire import policy_pb2 as pb
from edge_runtime.wire.messages import Camera, Chunk, ExtraState, Joint, Policy, Welcome
from policy_server import bundle
from policy_server import server as server_module
from policy_server.config import LimitsConfig, ServerConfig
from policy_server.door.deadlines import Deadlines
from policy_server.door.health import Health
from policy_server.door.peers import Peers
from policy_server.engines import Engine
from policy_server.engines.providers import Runtime
from policy_server.server import PolicyServer
from scripts.rig.robots import DESCRIBE, Robot, hello_to, look, refusal, status_of, watch_health
from tests.policy_server.conftest import Engines, serving


@pytest.fixture(scope="module")
def server(tiny: Path, seeing: Path) -> Iterator[PolicyServer]:
    with serving(seeing, tiny, max_sessions=2) as server:
        yield server


@pytest.fixture
def policy(seeing: Path) -> Policy:
    return bundle.load(seeing).policy


def test_describe_offers_all_policies_the_default_first(server: PolicyServer, policy: Policy) -> None:
    with grpc.insecure_channel(server.address) as channel:
        answer = channel.unary_unary(DESCRIBE, response_deserializer=pb.ServerDescription.FromString)(b"", timeout=5)
    description = codec.decode_description(answer)
    assert description.policies[0] == policy
    assert [each.name for each in description.policies] == ["seeing", "tiny"]


def test_a_fitting_robot_is_welcomed_with_the_policy(server: PolicyServer, policy: Policy) -> None:
    with Robot(server.address, hello_to(policy)) as robot:
        assert robot.receive() == Welcome(policy, understands=("received",))


def test_no_name_means_the_first(server: PolicyServer, policy: Policy) -> None:
    with Robot(server.address, hello_to(policy, model="")) as robot:
        assert robot.receive() == Welcome(policy, understands=("received",))


DIFFERENCES: list[tuple[dict[str, Any], str]] = [
    ({"protocol_version": 7}, "protocol version: robot 7, server 1"),
    ({"joints": (Joint("elbow.pos", "degrees"),)}, "joints: robot [elbow.pos], policy [shoulder.pos, elbow.pos, "),
    ({"fps": 25.0}, "fps: robot 25, policy 30"),
    ({"actions_per_chunk": 5}, "actions_per_chunk: robot 5, policy at most 4"),
    (
        {"cameras": (Camera("top", 24, 32), Camera("wrist", 16, 16))},
        "cameras: robot [top, wrist], policy [front, wrist]",
    ),
    ({"cameras": (Camera("front", 48, 64), Camera("wrist", 16, 16))}, "robot sends 64x48, policy takes 32x24"),
    ({"extra_state": (ExtraState("observation.environment_state", 3),)}, "robot has 3, policy takes 2"),
    ({"extra_state": ()}, "observation.environment_state: robot has none"),
    ({"digest": b"x" * 32}, "policy: robot started with 787878787878"),
]


@pytest.mark.parametrize(("change", "said"), DIFFERENCES, ids=[next(iter(change)) for change, _ in DIFFERENCES])
def test_a_difference_is_refused_with_both_sides(
    server: PolicyServer, policy: Policy, change: dict[str, Any], said: str
) -> None:
    code, sentence = refusal(server.address, hello_to(policy, **change))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert sentence.startswith("this robot does not fit policy seeing: ")
    assert said in sentence


def test_every_difference_is_in_the_one_sentence(server: PolicyServer, policy: Policy) -> None:
    radians = tuple(replace(joint, unit="radians") for joint in policy.joints)
    _, sentence = refusal(server.address, hello_to(policy, joints=radians, fps=25.0))
    assert all(f"unit of {joint.name}: robot radians, policy degrees" in sentence for joint in policy.joints)
    assert "fps: robot 25, policy 30" in sentence


def test_an_unknown_model_is_refused_with_what_there_is(server: PolicyServer, policy: Policy) -> None:
    code, sentence = refusal(server.address, hello_to(policy, model="sewing"))
    assert code is grpc.StatusCode.NOT_FOUND
    assert "'sewing' is not offered here; offered: [seeing, tiny]" in sentence


def test_an_extra_camera_is_ignored_with_one_warning(
    server: PolicyServer, policy: Policy, caplog: pytest.LogCaptureFixture
) -> None:
    hello = hello_to(policy, cameras=(*policy.cameras, Camera("side", 8, 8)))
    with Robot(server.address, hello) as robot:
        assert robot.receive() == Welcome(policy, understands=("received",))
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "cameras [side] are not used by seeing" in warnings[0]


@pytest.mark.parametrize(
    "first",
    [
        b"\xff\xff\xff",
        b"",
        pb.ClientMessage(ping=pb.Ping(id=1)).SerializeToString(),
        codec.encode_observation(look(1))[0].SerializeToString(),
        pb.ClientMessage(hello=pb.Hello(fps=float("nan"), joints=[pb.Joint(name="a", unit="b")])).SerializeToString(),
    ],
    ids=["noise", "empty", "ping", "observation", "nan"],
)
def test_what_is_no_hello_is_refused(server: PolicyServer, first: bytes) -> None:
    with Robot(server.address, None) as robot:
        robot.send_bytes(first)
        assert status_of(robot)[0] is grpc.StatusCode.INVALID_ARGUMENT


def test_a_stream_that_ends_before_its_hello_is_nothing(server: PolicyServer) -> None:
    with Robot(server.address, None) as robot:
        robot.send_no_more()
        assert status_of(robot)[0] is grpc.StatusCode.OK


def test_one_session_too_many_is_refused_at_once_and_a_place_is_free_again_at_once(
    server: PolicyServer, policy: Policy
) -> None:
    with Robot(server.address, hello_to(policy)) as first, Robot(server.address, hello_to(policy)) as second:
        first.welcomed()
        second.welcomed()
        code, sentence = refusal(server.address, hello_to(policy))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert sentence == "all 2 sessions are taken"
        second.send_no_more()
        assert status_of(second)[0] is grpc.StatusCode.OK
        with Robot(server.address, hello_to(policy)) as third:
            third.welcomed()


def test_a_robot_that_comes_back_does_not_load_the_model_again(tiny: Path, engines: Engines) -> None:
    policy = bundle.load(tiny).policy
    with serving(tiny) as server:
        for _ in range(3):
            with Robot(server.address, hello_to(policy, digest=policy.digest)) as robot:
                assert isinstance(robot.welcomed().ask(look(1)), Chunk)
    assert engines.opened == ["tiny"]


def test_health_and_streams_say_no_until_warm(tiny: Path, engines: Engines) -> None:
    engines.may_warm_up.clear()
    policy = bundle.load(tiny).policy
    with serving(tiny, wait=False) as server, grpc.insecure_channel(server.address) as channel:
        states = watch_health(channel)
        named = watch_health(channel, "edge_runtime.policy.v1.PolicyService")
        assert (next(states), next(named)) == ("NOT_SERVING", "NOT_SERVING")
        with pytest.raises(grpc.RpcError, match="tiny is warming up"):
            channel.unary_unary(DESCRIBE)(b"", timeout=5)
        code, sentence = refusal(server.address, hello_to(policy))
        assert code is grpc.StatusCode.UNAVAILABLE
        assert sentence == "model tiny is still warming up"
        engines.may_warm_up.set()
        assert (next(states), next(named)) == ("SERVING", "SERVING")
        with Robot(server.address, hello_to(policy)) as robot:
            robot.welcomed()


def test_a_long_warm_up_tells_how_far_it_is(tiny: Path, engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "PROGRESS_S", 0.01)
    said = threading.Event()
    monkeypatch.setattr(server_module.log, "info", lambda line, *values: said.set() if "warming" in line else None)
    engines.may_warm_up.clear()
    with serving(tiny, wait=False):
        assert said.wait(5)
        engines.may_warm_up.set()


def test_who_says_no_hello_is_not_waited_for(tiny: Path) -> None:
    with serving(tiny, max_sessions=1, limits=LimitsConfig(handshake_s=0.3)) as server:
        with Robot(server.address, None) as mute:
            assert status_of(mute)[0] is grpc.StatusCode.DEADLINE_EXCEEDED
        with Robot(server.address, hello_to(bundle.load(tiny).policy)) as robot:
            robot.welcomed()


def test_an_engine_that_cannot_be_had_ends_the_server(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_engine(bundle: bundle.Bundle, runtime: Runtime) -> Engine:
        raise ModelError("no such engine")

    monkeypatch.setattr(server_module, "open_engine", open_engine)
    config = ServerConfig(listen="127.0.0.1:0")
    with PolicyServer(config, [bundle.load(tiny)]) as server, pytest.raises(ModelError, match="no such engine"):
        server.run(Future())


def test_a_stop_ends_every_stream_with_its_reason(tiny: Path) -> None:
    policy = bundle.load(tiny).policy
    with serving(tiny) as server:
        robot = Robot(server.address, hello_to(policy)).welcomed()
        channel = grpc.insecure_channel(server.address)
        states = watch_health(channel)
        assert next(states) == "SERVING"
    with robot, channel:
        assert next(states) == "NOT_SERVING"
        assert status_of(robot) == (grpc.StatusCode.UNAVAILABLE, "the server is stopping")


def test_a_watcher_that_leaves_while_health_changes_stops_nothing(tiny: Path) -> None:
    health = Health((), places=8, message_s=10.0, deadlines=Deadlines(), peers=Peers())
    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((health.handler(),))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()

    def close_all(channels: list[grpc.Channel]) -> None:
        for channel in channels:
            channel.close()

    def change_under_leaving_watchers() -> None:
        for turn in range(100):
            channels = [grpc.insecure_channel(address, (("grpc.use_local_subchannel_pool", 1),)) for _ in range(3)]
            watchers = [watch_health(channel) for channel in channels]
            assert all(next(watcher) for watcher in watchers)
            leaving = threading.Thread(target=close_all, args=(channels,))
            leaving.start()
            health.set(turn % 2 == 0)
            leaving.join()

    changing = threading.Thread(target=change_under_leaving_watchers, daemon=True)
    changing.start()
    changing.join(20)
    assert not changing.is_alive()
    server.stop(0).wait()
