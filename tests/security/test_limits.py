"""Each limit of the server, over real connections: what it refuses, with which status, and that others go on."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from edge_runtime.errors import ConfigError
from edge_runtime.wire import codec
from edge_runtime.wire import policy_pb2 as pb
from edge_runtime.wire.messages import Chunk, Frame, Observation, Ping, Policy
from policy_server import bundle
from policy_server.config import LimitsConfig, ServerConfig
from policy_server.door.admission import Admission, Fault
from policy_server.door.deadlines import Deadlines
from policy_server.door.peers import Peers
from policy_server.door.stream_limits import StreamLimits
from policy_server.server import PolicyServer
from scripts.rig.bundles import write_bundle
from scripts.rig.robots import ACT, DESCRIBE, Robot, hello_to, look, status_of, watch_health
from tests.policy_server.conftest import serving
from tests.security.attacks import deaf

EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
LATE = grpc.StatusCode.DEADLINE_EXCEEDED
CHECK = "/grpc.health.v1.Health/Check"
WATCH = "/grpc.health.v1.Health/Watch"


@pytest.fixture
def policy(tiny: Path) -> Policy:
    return bundle.load(tiny).policy


@pytest.fixture(scope="session")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One camera."""
    return write_bundle(tmp_path_factory.mktemp("bundles") / "seeing", name="seeing", cameras=[("front", 480, 640)])


def frame() -> Frame:
    return Frame.raw("front", np.zeros((480, 640, 3), np.uint8))


def silence() -> Iterator[bytes]:
    """Of a client that begins a call and never says a word."""
    threading.Event().wait(20)
    yield b""


# What one stream may do.


def test_a_message_that_is_too_large_ends_its_stream(tiny: Path, policy: Policy) -> None:
    with (
        serving(tiny, limits=LimitsConfig(message_bytes=1 << 17)) as server,
        Robot(server.address, hello_to(policy)) as robot,
    ):
        robot.welcomed().send_bytes(b"\x1a" + b"\x80" * (1 << 17))
        assert status_of(robot)[0] is EXHAUSTED


@pytest.mark.parametrize(
    ("kind", "size"), [("hello", 1 << 18), ("observation", 1 << 16), ("piece", (1 << 20) + 64), ("ping", 16)]
)
def test_a_message_larger_than_its_kind_is_not_parsed(tiny: Path, policy: Policy, kind: str, size: int) -> None:
    """Parsed, half a million empty joints in 1 MiB would take 28 MiB."""
    if kind == "observation":  # with it come the state and the rows that the robot still plans to execute
        size += 4 * len(policy.joints) * (1 + policy.chunk_size)
    number = pb.ClientMessage.DESCRIPTOR.fields_by_name[kind].number
    body = b"\x1a\x00" * (size // 2)
    data = bytes([number << 3 | 2]) + varint(len(body)) + body
    with serving(tiny) as server, Robot(server.address, hello_to(policy)) as robot:
        robot.welcomed().send_bytes(data)
        code, said = status_of(robot)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert said == f"stream: {kind} of {len(data)} bytes, expected at most {size}"


def varint(number: int) -> bytes:
    encoded = b""
    while number > 0x7F:
        encoded += bytes([number & 0x7F | 0x80])
        number >>= 7
    return encoded + bytes([number])


def test_an_observation_that_is_too_large_is_refused_at_its_header(seeing: Path) -> None:
    policy = bundle.load(seeing).policy
    with (
        serving(seeing, limits=LimitsConfig(observation_bytes=900_000)) as server,
        Robot(server.address, hello_to(policy)) as robot,
    ):
        assert isinstance(robot.welcomed().ask(look(1, frames=(frame(),)), jpeg_quality=80), Chunk)
        header = codec.encode_observation(look(2, frames=(frame(),)))[0]
        robot.send_bytes(header.SerializeToString())
        assert status_of(robot) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "frames: bytes: 921600 is not in 0..900000",
        )


def test_a_policy_with_larger_frames_than_allowed_is_not_served(seeing: Path) -> None:
    config = ServerConfig(listen="127.0.0.1:0", limits=LimitsConfig(image_side=639))
    with (
        PolicyServer(config, [bundle.load(seeing)]) as server,
        pytest.raises(ConfigError, match=r"limits\.image_side: 639, and seeing takes front in 640x480"),
    ):
        server.run(Future())


def test_too_many_observations_end_their_stream_and_no_other(tiny: Path, policy: Policy) -> None:
    limits = LimitsConfig(observations_per_second=20, idle_s=0)
    with (
        serving(tiny, limits=limits) as server,
        Robot(server.address, hello_to(policy)) as honest,
        Robot(server.address, hello_to(policy)) as flood,
    ):
        honest.welcomed()
        flood.welcomed().send(*(look(id, timestep=id) for id in range(1, 101)))
        code, said = status_of(flood)
        assert (code, said) == (EXHAUSTED, "more than 20 observations per second")
        assert isinstance(honest.ask(look(1)), Chunk)


def test_pings_are_counted_like_observations(tiny: Path, policy: Policy) -> None:
    with (
        serving(tiny, limits=LimitsConfig(observations_per_second=20)) as server,
        Robot(server.address, hello_to(policy)) as flood,
    ):
        flood.welcomed()
        for id in range(1, 101):
            flood.send_bytes(codec.encode_ping(Ping(id)).SerializeToString())
        assert status_of(flood)[0] is EXHAUSTED


def test_an_observation_that_never_ends_is_ended(seeing: Path) -> None:
    policy = bundle.load(seeing).policy
    with (
        serving(seeing, limits=LimitsConfig(unfinished_s=0.3)) as server,
        Robot(server.address, hello_to(policy)) as robot,
    ):
        robot.welcomed()
        header, piece, *_ = codec.encode_observation(look(7, frames=(frame(),)))
        robot.send_bytes(header.SerializeToString())
        del piece  # nothing of it ever comes
        assert status_of(robot) == (LATE, "observation 7: unfinished after 0.3 s")


def test_the_deadline_of_an_observation_that_came_is_off(seeing: Path) -> None:
    policy = bundle.load(seeing).policy
    with (
        serving(seeing, limits=LimitsConfig(unfinished_s=1.0, idle_s=1.2)) as server,
        Robot(server.address, hello_to(policy)) as robot,
    ):
        assert isinstance(robot.welcomed().ask(look(7, frames=(frame(),))), Chunk)
        assert status_of(robot) == (LATE, "nothing heard for 1.2 s")  # and not: unfinished, before that


def test_who_says_nothing_for_long_is_ended(tiny: Path, policy: Policy) -> None:
    with serving(tiny, limits=LimitsConfig(idle_s=0.3)) as server, Robot(server.address, hello_to(policy)) as robot:
        assert status_of(robot.welcomed()) == (LATE, "nothing heard for 0.3 s")


# How many there may be.


def test_one_peer_may_not_have_all_sessions() -> None:
    admission = Admission(4, 2, Peers())
    admission.enter("a", "ipv4:192.0.2.7:1000")
    admission.enter("b", "ipv4:192.0.2.7:1001")
    with pytest.raises(Fault, match=r"192\.0\.2\.7 has 2 sessions, which is all it may") as fault:
        admission.enter("c", "ipv4:192.0.2.7:1002")
    assert fault.value.code is EXHAUSTED
    admission.enter("c", "ipv4:192.0.2.8:1002")
    admission.leave("a")
    admission.leave("a")
    admission.enter("a", "ipv4:192.0.2.7:1003")
    admission.enter("d", "unix:")
    with pytest.raises(Fault, match="all 4 sessions are taken"):
        admission.enter("e", "ipv4:192.0.2.9:1004")


@pytest.mark.parametrize(
    ("peer", "home"),
    [
        ("ipv4:192.0.2.7:40000", "192.0.2.7"),
        ("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:40000", "2001:db8:1:2::/64"),
        ("ipv6:%5Bfe80::1%25eth0%5D:40000", "fe80::/64"),
        ("ipv6:%5B::ffff:192.0.2.7%5D:40000", "192.0.2.7"),
        ("ipv4:127.0.0.1:40000", ""),
        ("ipv6:%5B::1%5D:40000", ""),
        ("unix:", ""),
        ("unix:/run/policy.sock", ""),
    ],
)
def test_who_a_peer_is(peer: str, home: str) -> None:
    assert Peers().home(peer) == home


def test_what_comes_through_a_trusted_proxy_has_no_address() -> None:
    peers = Peers(["192.0.2.7", "2001:db8:1::/48"])
    assert [peers.home(f"ipv4:192.0.2.{last}:40000") for last in (7, 8)] == ["", "192.0.2.8"]
    assert peers.home("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:40000") == ""
    with pytest.raises(ConfigError, match=r"trusted_proxies: 'balancer' is neither an address nor a network"):
        Peers(["balancer"])


def test_many_sessions_through_a_trusted_proxy_are_not_of_one_peer() -> None:
    admission = Admission(4, 1, Peers(["192.0.2.0/24"]))
    for number in range(4):
        admission.enter(number, f"ipv4:192.0.2.7:{1000 + number}")


def own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return ""


@pytest.mark.skipif(not own_address(), reason="this machine has no address but loopback")
def test_a_machine_has_so_many_sessions_and_this_one_any_number(tiny: Path, policy: Policy) -> None:
    limits = LimitsConfig(sessions_per_peer=1)
    with serving(tiny, listen="0.0.0.0:0", insecure=True, limits=limits) as server:
        port = server.address.rpartition(":")[2]
        outside, inside = f"{own_address()}:{port}", f"127.0.0.1:{port}"
        with Robot(outside, hello_to(policy)) as first, Robot(inside, hello_to(policy)) as second:
            first.welcomed()
            second.welcomed()
            with Robot(outside, hello_to(policy)) as third:
                assert status_of(third) == (EXHAUSTED, f"{own_address()} has 1 sessions, which is all it may")
            with Robot(inside, hello_to(policy)) as fourth:
                fourth.welcomed()


def test_connections_beyond_the_limit_are_closed_at_once(tiny: Path, policy: Policy) -> None:
    with (
        serving(tiny, max_sessions=1, limits=LimitsConfig(connections=8)) as server,
        Robot(server.address, hello_to(policy)) as robot,
    ):
        robot.welcomed()
        host, _, port = server.address.rpartition(":")
        with ExitStack() as stack:  # none is closed by us before all are judged
            connections = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(20)]
            assert sum(map(is_closed, connections)) >= 20 - (8 - 1)
        assert isinstance(robot.ask(look(1)), Chunk)


def is_closed(connection: socket.socket) -> bool:
    """By the server, at once; it greets at once whom it takes."""
    connection.settimeout(10)
    try:
        return not connection.recv(1)
    except ConnectionError:
        return True


@pytest.mark.parametrize("says", [b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))])
def test_a_connection_that_asks_nothing_is_closed(tiny: Path, says: bytes) -> None:
    with serving(tiny, limits=LimitsConfig(handshake_s=0.5)) as server:
        host, _, port = server.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(says)
            while connection.recv(1024):
                pass


# Calls half made.


def test_half_open_calls_cost_nobody_a_place(tiny: Path, policy: Policy) -> None:
    """More of each kind than there are workers; and a robot comes in as if there were none."""
    with serving(tiny, max_sessions=2) as server, grpc.insecure_channel(server.address) as channel:
        half_open = [
            channel.stream_stream(method)(silence())
            for method in (CHECK, DESCRIBE, WATCH, "/no.such/Thing")
            for _ in range(40)
        ]
        with Robot(server.address, hello_to(policy)) as robot:
            assert isinstance(robot.welcomed().ask(look(1)), Chunk)
        with grpc.insecure_channel(server.address, (("grpc.use_local_subchannel_pool", 1),)) as other:
            assert other.unary_unary(DESCRIBE)(b"", timeout=20)
        for call in half_open:
            call.cancel()


def test_a_question_about_health_that_is_never_asked_is_given_up(tiny: Path) -> None:
    with (
        serving(tiny, limits=LimitsConfig(handshake_s=1.0)) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        calls = [channel.stream_stream(CHECK)(silence()) for _ in range(12)]
        statuses = []
        for call in calls:
            with pytest.raises(grpc.RpcError) as error:
                next(call)
            statuses.append(error.value.code())
        assert statuses.count(EXHAUSTED) == 4
        assert statuses.count(grpc.StatusCode.CANCELLED) == 8
        assert next(watch_health(channel)) == "SERVING"


@pytest.mark.parametrize("method", [DESCRIBE, CHECK, WATCH])
def test_a_peer_that_takes_nothing_holds_no_worker(tiny: Path, policy: Policy, method: str) -> None:
    """A window of 0 and more calls than there are workers, on one connection; each is ended once it is too late."""
    limits = LimitsConfig(unfinished_s=2.0)
    with serving(tiny, max_sessions=2, limits=limits) as server, deaf(server.address) as peer:
        peer.begin(method, count=60)
        with Robot(server.address, hello_to(policy)) as robot:
            assert isinstance(robot.welcomed().ask(look(1)), Chunk)
        peer.wait_for_ends(60)
        assert next(watch_health(grpc.insecure_channel(server.address))) == "SERVING"


def test_a_connection_begins_fewer_calls_than_there_are_workers(tiny: Path) -> None:
    with serving(tiny, max_sessions=2) as server, deaf(server.address) as peer:
        assert peer.most_streams() < server.workers


def test_questions_are_counted_by_peer() -> None:
    asking = Admission(4, 2, Peers(), "questions about policies")
    asking.enter("a", "ipv4:192.0.2.7:1000")
    asking.enter("b", "ipv4:192.0.2.7:1001")
    with pytest.raises(Fault, match=r"192\.0\.2\.7 has 2 questions about policies, which is all it may"):
        asking.enter("c", "ipv4:192.0.2.7:1002")
    asking.enter("c", "ipv4:192.0.2.8:1000")


@pytest.mark.skipif(not own_address(), reason="this machine has no address but loopback")
@pytest.mark.parametrize("method", [DESCRIBE, WATCH])
def test_a_machine_asks_no_more_than_half_of_what_may_be_asked(tiny: Path, method: str) -> None:
    with serving(tiny, listen="0.0.0.0:0", insecure=True) as server:
        port = server.address.rpartition(":")[2]
        with deaf(f"{own_address()}:{port}") as peer:
            peer.begin(method, count=10)
            peer.wait_for_ends(10 - 4)  # at once: the others have 10 s
            assert len(peer.ended) == 6


def test_sessions_that_say_no_hello_free_their_places(tiny: Path, policy: Policy) -> None:
    with (
        serving(tiny, max_sessions=2, limits=LimitsConfig(handshake_s=1.0)) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        calls = [channel.stream_stream(ACT)(silence()) for _ in range(2)]
        for call in calls:
            with pytest.raises(grpc.RpcError) as error:
                next(call)
            assert (error.value.code(), error.value.details()) == (LATE, "no hello within 1 s")
        with Robot(server.address, hello_to(policy)) as robot:
            assert isinstance(robot.welcomed().ask(look(1)), Chunk)


def test_what_is_over_stays_over() -> None:
    """The reader may still work through what gRPC had received, when the stream has long ended."""
    ended: list[Fault] = []
    deadlines = Deadlines()
    limits = StreamLimits(LimitsConfig(), deadlines, end=ended.append)
    limits.heard(asks=True)
    limits.over()
    limits.heard(asks=True)
    limits.arriving(7)
    assert not deadlines._due


# The clock that ends things.


def test_deadlines_call_back_in_their_order_and_only_those_that_stand() -> None:
    deadlines = Deadlines()
    deadlines.start()
    called: list[str] = []
    last = threading.Event()
    deadlines.set("late", 0.8, lambda: (called.append("late"), last.set()))  # type: ignore[func-returns-value]
    deadlines.set("cleared", 0.6, lambda: called.append("cleared"))
    deadlines.set("moved", 0.6, lambda: called.append("moved"))
    deadlines.set("early", 0.4, lambda: called.append("early"))
    deadlines.clear("cleared")
    deadlines.clear("cleared")
    deadlines.set("moved", 60.0, lambda: called.append("moved"))
    assert last.wait(20)
    assert called == ["early", "late"]
    deadlines.stop()
    deadlines.stop()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"message_bytes": 1}, r"limits\.message_bytes: 1 is not in 65536\.\."),
        ({"handshake_s": 0.0}, r"limits\.handshake_s: 0 is not in 0\.1\.\.3600"),
        ({"unread_answers": 0}, r"limits\.unread_answers: 0 is not in 1\.\."),
    ],
)
def test_a_limit_that_cannot_be_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        LimitsConfig(**settings)
    with pytest.raises(ConfigError, match=r"limits\.connections: 128 is less than max_sessions 200"):
        ServerConfig(max_sessions=200)


def test_an_observation_is_what_it_was(tiny: Path) -> None:
    """Foreign sessions: another robot's id means nothing on one's own stream."""
    policy = bundle.load(tiny).policy
    with (
        serving(tiny) as server,
        Robot(server.address, hello_to(policy)) as mine,
        Robot(server.address, hello_to(policy)) as liar,
    ):
        first: Observation = look(1, timestep=5, state=1.0, session=77)
        assert mine.welcomed().ask(first).session == 77
        answer = liar.welcomed().ask(look(1, timestep=5, state=9.0, session=77))
        np.testing.assert_array_equal(answer.actions[0], np.full(3, 9.0))
        np.testing.assert_array_equal(mine.ask(look(2, timestep=6, state=2.0, session=77)).actions[0], np.full(3, 2.0))
