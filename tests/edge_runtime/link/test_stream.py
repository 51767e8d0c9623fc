"""One stream to a real gRPC server on loopback: welcome, answers, breaks, refusals."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import grpc
import numpy as np
import pytest

from edge_runtime.errors import AccessError, EdgeRuntimeError, ProtocolError, StreamError
from edge_runtime.link.channel import Access
from edge_runtime.link.stream import PolicyStream
from edge_runtime.wire import codec
from edge_runtime.wire.messages import Answer, Chunk, Observation, Pace, Policy, Replaced
from tests.edge_runtime.link.scripted_server import HELLO, JOINTS, POLICY, ScriptedServer

WAIT_S = 20.0


class Recorder:
    """A conversation that keeps what the stream told it."""

    def __init__(self) -> None:
        self.events: queue.Queue[tuple[str, object]] = queue.Queue()

    def connected(self, policy: Policy) -> None:
        self.events.put(("connected", policy))

    def disconnected(self) -> None:
        self.events.put(("disconnected", None))

    def answered(self, answer: Answer) -> None:
        self.events.put(("answered", answer))

    def pinged(self, seconds: float) -> None:
        self.events.put(("pinged", seconds))

    def replaced(self, policy: Policy) -> None:
        self.events.put(("replaced", policy))

    def paced(self, interval_s: float) -> None:
        self.events.put(("paced", interval_s))

    def wait_for(self, kind: str) -> object:
        while True:
            got, what = self.events.get(timeout=WAIT_S)
            if got == kind:
                return what


class Running:
    """A stream in a thread, and how it ended."""

    def __init__(self, server: ScriptedServer, **settings: float) -> None:
        self.stream = PolicyStream(Access(server.address), **settings)  # type: ignore[arg-type]
        self.heard = Recorder()
        self.ended: queue.Queue[EdgeRuntimeError | None] = queue.Queue()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.stream.run(HELLO, self.heard)
        except EdgeRuntimeError as error:
            self.ended.put(error)
        else:
            self.ended.put(None)

    def stop(self) -> None:
        self.stream.stop()
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    yield server
    server.kill()


@pytest.fixture
def running(server: ScriptedServer) -> Iterator[Running]:
    running = Running(server)
    yield running
    running.stop()


def observation(number: int) -> Observation:
    return Observation(number, session=1, timestep=number, must_go=True, state=np.zeros(2, np.float32))


def test_a_stop_just_before_there_is_a_connection_is_not_lost(server: ScriptedServer) -> None:
    stream = PolicyStream(Access(server.address))

    class Late(threading.Event):
        """Is asked, says no, and then is set by `stop`, which finds no connection to cancel."""

        def is_set(self) -> bool:
            before = super().is_set()
            if not before:
                stream.stop()
            return before

    stream._stopping = Late()
    ended = threading.Thread(target=stream.run, args=(HELLO, Recorder()), daemon=True)
    ended.start()
    ended.join(WAIT_S)
    assert not ended.is_alive()


def test_an_observation_is_answered_and_the_network_measured(running: Running) -> None:
    assert running.heard.wait_for("connected") == POLICY
    assert running.stream.send(observation(1))
    seconds = running.heard.wait_for("pinged")
    assert isinstance(seconds, float)
    assert 0 <= seconds < WAIT_S
    chunk = running.heard.wait_for("answered")
    assert isinstance(chunk, Chunk)
    assert (chunk.observation, chunk.first_timestep, chunk.actions.shape) == (1, 1, (10, 2))


def test_nothing_is_sent_before_the_welcome(server: ScriptedServer) -> None:
    server.silent = True
    running = Running(server)
    assert not running.stream.send(observation(1))
    running.stop()
    assert running.ended.get(timeout=WAIT_S) is None


def test_a_killed_server_is_found_again_with_the_digest_seen_before(server: ScriptedServer, running: Running) -> None:
    running.heard.wait_for("connected")
    server.kill()
    running.heard.wait_for("disconnected")
    assert not running.stream.send(observation(1))
    server.restart()
    running.heard.wait_for("connected")
    assert list(dict.fromkeys(hello.digest for hello in server.hellos)) == [b"", POLICY.digest]
    assert running.stream.reconnects == 1
    assert running.stream.send(observation(2))
    assert isinstance(running.heard.wait_for("answered"), Chunk)


def test_streams_that_break_after_an_answer_are_said_once(
    server: ScriptedServer, running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(1, 4):
        running.heard.wait_for("connected")
        assert running.stream.send(observation(number))
        running.heard.wait_for("answered")
        server.kill()
        running.heard.wait_for("disconnected")
        server.restart()
    running.heard.wait_for("connected")
    assert len([record for record in caplog.records if "trying again" in record.getMessage()]) == 1


def test_a_policy_replaced_within_the_stream_is_taken_and_expected_from_then_on(
    server: ScriptedServer, running: Running
) -> None:
    new = replace(POLICY, digest=bytes(32))
    running.heard.wait_for("connected")
    server.announcements.append(codec.encode_replaced(Replaced(new)))
    assert running.stream.send(observation(1))
    assert running.heard.wait_for("replaced") == new
    server.kill()
    running.heard.wait_for("disconnected")
    server.policy = new
    server.restart()
    assert running.heard.wait_for("connected") == new
    assert server.hellos[-1].digest == new.digest


def test_a_policy_replaced_by_one_that_does_not_fit_ends_it(server: ScriptedServer, running: Running) -> None:
    running.heard.wait_for("connected")
    server.announcements.append(codec.encode_replaced(Replaced(replace(POLICY, joints=JOINTS[:1]))))
    assert running.stream.send(observation(1))
    error = running.ended.get(timeout=WAIT_S)
    assert isinstance(error, ProtocolError)
    assert "replaced the policy by one that does not fit: joints: robot [a.pos, b.pos], policy [a.pos]" in str(error)


def test_a_pace_is_passed_on(server: ScriptedServer, running: Running) -> None:
    running.heard.wait_for("connected")
    server.announcements.append(codec.encode_pace(Pace(0.5)))
    assert running.stream.send(observation(1))
    assert running.heard.wait_for("paced") == 0.5


def test_a_server_with_another_policy_after_a_restart_ends_it(server: ScriptedServer, running: Running) -> None:
    running.heard.wait_for("connected")
    server.kill()
    server.policy = replace(POLICY, digest=bytes(32))
    server.restart()
    error = running.ended.get(timeout=WAIT_S)
    assert isinstance(error, ProtocolError)
    assert "000000000000" in str(error)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (grpc.StatusCode.FAILED_PRECONDITION, ProtocolError),
        (grpc.StatusCode.NOT_FOUND, ProtocolError),
        (grpc.StatusCode.UNIMPLEMENTED, ProtocolError),
        (grpc.StatusCode.UNAUTHENTICATED, AccessError),
        (grpc.StatusCode.PERMISSION_DENIED, AccessError),
    ],
)
def test_a_refusal_is_not_retried(server: ScriptedServer, status: grpc.StatusCode, kind: type[Exception]) -> None:
    server.refuse = (status, "units differ")
    running = Running(server)
    error = running.ended.get(timeout=WAIT_S)
    assert isinstance(error, kind)
    assert "units differ" in str(error)


@pytest.mark.parametrize("status", [grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INTERNAL])
def test_overload_passes(server: ScriptedServer, status: grpc.StatusCode) -> None:
    server.refuse = (status, "later")
    running = Running(server)
    running.heard.wait_for("disconnected")
    server.refuse = None
    running.heard.wait_for("connected")
    running.stop()


def test_a_server_that_accepts_and_stays_silent_is_given_up(server: ScriptedServer) -> None:
    server.silent = True
    running = Running(server, give_up_after_s=1.5)
    error = running.ended.get(timeout=WAIT_S)
    assert isinstance(error, StreamError)
    assert error.exit_code == 69
    assert "no welcome" in str(error)


def test_no_server_at_all_is_given_up_with_the_address() -> None:
    gone = ScriptedServer()
    gone.kill()
    stream = PolicyStream(Access(gone.address), give_up_after_s=0.5)
    with pytest.raises(StreamError, match=gone.address):
        stream.describe(threading.Event())


def test_describe_ends_when_cancelled() -> None:
    gone = ScriptedServer()
    gone.kill()
    cancelled = threading.Event()
    threading.Timer(0.2, cancelled.set).start()
    assert PolicyStream(Access(gone.address), give_up_after_s=0).describe(cancelled) is None


def test_a_stream_that_is_welcomed_and_breaks_each_time_is_given_up(server: ScriptedServer) -> None:
    server.leave_after_welcome = True
    running = Running(server, give_up_after_s=1.0)
    error = running.ended.get(timeout=WAIT_S)
    assert isinstance(error, StreamError)
    assert 2 <= len(server.hellos) <= 8  # with a back-off in between


def test_lerobots_policy_server_is_told_as_such() -> None:
    """It serves `transport.AsyncInference` alone, and knows no other method."""
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("transport.AsyncInference", {}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with pytest.raises(ProtocolError, match=r"LeRobot's policy_server answers so: run policy-server start BUNDLE"):
            PolicyStream(Access(f"127.0.0.1:{port}"), give_up_after_s=30).describe(threading.Event())
    finally:
        server.stop(None).wait()
