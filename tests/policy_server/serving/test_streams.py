"""Observations over a real connection: each gets exactly one answer, its own."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest

from edge_runtime.wire import codec
from edge_runtime.wire import policy_pb2 as pb
from edge_runtime.wire.messages import Chunk, Failure, Frame, Observation, Ping, Policy, Skipped
from policy_server import bundle
from policy_server.config import LimitsConfig
from policy_server.door import refusals
from policy_server.server import PolicyServer
from policy_server.serving import model
from policy_server.serving.cleaning import match_keys
from policy_server.serving.fairness import DecodingTurns
from policy_server.serving.outbox import Outbox
from policy_server.serving.scheduler import Timing
from policy_server.serving.session import Session
from scripts.rig.robots import Robot, hello_to, look, status_of
from tests.policy_server.conftest import Engines, HeldEngine, serving

WAIT_S = 60  # longer than any machine takes


@pytest.fixture
def policy(tiny: Path) -> Policy:
    return bundle.load(tiny).policy


@pytest.fixture
def server(tiny: Path, engines: Engines) -> Iterator[PolicyServer]:
    with serving(tiny) as server:
        yield server


@pytest.fixture
def engine(server: PolicyServer, engines: Engines) -> HeldEngine:
    return engines["tiny"]


@pytest.fixture
def robot(server: PolicyServer, policy: Policy) -> Iterator[Robot]:
    with Robot(server.address, hello_to(policy, similarity_tolerance=1.0)) as robot:
        yield robot.welcomed()


def rows(state: float, count: int = 4) -> Any:
    return np.broadcast_to(state + np.arange(count)[:, None] / 8, (count, 3))


def explode(batch: Mapping[str, Any]) -> None:
    raise RuntimeError("the engine is\non fire")


def test_a_chunk_says_what_it_answers_and_where_the_time_went(robot: Robot, policy: Policy) -> None:
    chunk = robot.ask(look(7, timestep=40, state=2.5, session=9))
    assert (chunk.observation, chunk.session, chunk.first_timestep, chunk.batch) == (7, 9, 40, 1)
    assert chunk.digest == policy.digest
    np.testing.assert_array_equal(chunk.actions, rows(2.5))
    times = chunk.times
    assert min(times.receive, times.admit, times.wait, times.prepare, times.infer, times.finish) > 0
    assert times.inject < 1e-4


def test_only_the_rows_that_were_asked_for_are_sent(server: PolicyServer, policy: Policy) -> None:
    with Robot(server.address, hello_to(policy, actions_per_chunk=3)) as robot:
        np.testing.assert_array_equal(robot.welcomed().ask(look(1)).actions, rows(0, 3))


def test_a_ping_is_answered(robot: Robot) -> None:
    robot.send_bytes(codec.encode_ping(Ping(5)).SerializeToString())
    assert robot.receive() == Ping(5)


def test_two_robots_get_their_own(server: PolicyServer, policy: Policy) -> None:
    wrong: list[Any] = []

    def converse(base: float) -> None:
        with Robot(server.address, hello_to(policy)) as robot:
            robot.welcomed()
            for id in range(1, 501):
                chunk = robot.ask(look(id, timestep=id, state=base + id, session=int(base)))
                right = np.array_equal(chunk.actions, rows(base + id)) and chunk.session == int(base)
                if not (right and chunk.observation == chunk.first_timestep == id):
                    wrong.append(chunk)

    robots = [threading.Thread(target=converse, args=(base,)) for base in (1000.0, 5000.0)]
    for thread in robots:
        thread.start()
    for thread in robots:
        thread.join()
    assert not wrong


def test_what_waits_while_the_engine_is_busy_shares_the_next_batch(
    server: PolicyServer, engine: HeldEngine, policy: Policy
) -> None:
    robots = [Robot(server.address, hello_to(policy)).welcomed() for _ in range(4)]
    engine.gate.clear()
    robots[0].send(look(1))
    assert engine.sizes.get(timeout=WAIT_S) == 1
    for index, robot in enumerate(robots[1:], 1):
        robot.send(look(1, state=10.0 * index))
        robot.send_bytes(codec.encode_ping(Ping(1)).SerializeToString())
        assert robot.receive() == Ping(1)  # what was sent before it is in the slot
    engine.gate.set()
    assert engine.sizes.get(timeout=WAIT_S) == 3
    assert robots[0].receive().batch == 1
    for index, robot in enumerate(robots[1:], 1):
        chunk = robot.receive()
        assert chunk.batch == 3
        np.testing.assert_array_equal(chunk.actions, rows(10.0 * index))
    for robot in robots:
        robot.__exit__(None, None, None)


def test_the_newest_wins_and_the_others_are_told(robot: Robot, engine: HeldEngine) -> None:
    engine.gate.clear()
    robot.send(look(1, timestep=1))
    engine.sizes.get(timeout=WAIT_S)
    robot.send(look(2, timestep=2), look(3, timestep=9, state=3.0), look(4, timestep=5))
    assert robot.receive() == Skipped(2, "superseded")
    assert robot.receive() == Skipped(4, "superseded")
    engine.gate.set()
    assert robot.receive().observation == 1
    chunk = robot.receive()
    assert (chunk.observation, chunk.first_timestep) == (3, 9)


def test_a_similar_observation_is_skipped_unless_it_must_go(robot: Robot) -> None:
    assert isinstance(robot.ask(look(1, timestep=1)), Chunk)
    assert robot.ask(look(2, timestep=2, state=0.5)) == Skipped(2, "similar")  # 0.5 * sqrt(3) < 1
    assert isinstance(robot.ask(look(3, timestep=3, state=0.5, must_go=True)), Chunk)
    assert robot.ask(look(4, timestep=4, state=1.0)) == Skipped(4, "similar")  # as the last that was run
    assert isinstance(robot.ask(look(5, timestep=5, state=1.2)), Chunk)


def test_without_a_tolerance_nothing_is_similar(server: PolicyServer, policy: Policy) -> None:
    with Robot(server.address, hello_to(policy)) as robot:
        robot.welcomed()
        assert all(isinstance(robot.ask(look(id, timestep=id)), Chunk) for id in range(1, 4))


def test_a_timestep_is_predicted_once_unless_it_must_go(server: PolicyServer, policy: Policy) -> None:
    with Robot(server.address, hello_to(policy)) as robot:
        robot.welcomed()
        assert isinstance(robot.ask(look(1, timestep=3)), Chunk)
        assert robot.ask(look(2, timestep=3)) == Skipped(2, "already_predicted")
        assert isinstance(robot.ask(look(3, timestep=3, must_go=True)), Chunk)


def test_a_failed_inference_is_answered_and_counts_as_nothing(
    robot: Robot, engine: HeldEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.spoil = explode
    failure = robot.ask(look(1, timestep=1))
    assert isinstance(failure, Failure)
    assert (failure.observation, failure.code) == (1, grpc.StatusCode.INTERNAL.value[0])
    assert failure.message == "the engine is on fire"
    assert any(failure.error_id in record.getMessage() for record in caplog.records)
    engine.spoil = lambda batch: None
    assert isinstance(robot.ask(look(2, timestep=1)), Chunk)  # neither already predicted nor similar


def test_a_chunk_that_is_not_finite_is_a_failure_that_names_row_and_joint(
    robot: Robot, engine: HeldEngine, policy: Policy
) -> None:
    """Whatever the bundle's outputs are: a robot that got them would hold for ever and say nothing."""
    infer = engine._engine.infer

    class Poisoned:
        def infer(self, batch: Mapping[str, Any]) -> Any:
            actions = np.array(infer(batch))
            actions[:, 2:, 1] = np.nan
            return actions

    engine._engine, well = Poisoned(), engine._engine  # type: ignore[assignment]
    failure = robot.ask(look(1, timestep=1))
    assert isinstance(failure, Failure)
    assert failure.code == grpc.StatusCode.INTERNAL.value[0]
    assert failure.message == f"{policy.name}: row 2 of the chunk, {policy.joints[1].name}: nan is not a finite number"
    engine._engine = well
    assert isinstance(robot.ask(look(2, timestep=1)), Chunk)


def test_that_one_must_go_outlives_the_frame_that_said_so(robot: Robot, engine: HeldEngine) -> None:
    assert isinstance(robot.ask(look(1, timestep=1)), Chunk)
    engine.gate.clear()
    robot.send(look(2, timestep=9, state=50.0))
    assert [engine.sizes.get(timeout=WAIT_S) for _ in range(2)] == [1, 1]
    robot.send(look(3, timestep=8, must_go=True))  # older than what was taken: dropped
    assert robot.receive() == Skipped(3, "superseded")
    engine.gate.set()
    assert robot.receive().observation == 2
    assert isinstance(robot.ask(look(4, timestep=10, state=50.1)), Chunk)  # would be similar
    assert robot.ask(look(5, timestep=11, state=50.2)) == Skipped(5, "similar")


def test_a_new_session_starts_anew(robot: Robot, engine: HeldEngine) -> None:
    assert isinstance(robot.ask(look(1, timestep=5)), Chunk)
    assert isinstance(robot.ask(look(2, timestep=5, session=2)), Chunk)
    assert robot.ask(look(3, timestep=5, session=2)) == Skipped(3, "already_predicted")
    engine.gate.clear()
    robot.send(look(4, timestep=60, state=9.0, session=2))
    for _ in (1, 2, 4):
        engine.sizes.get(timeout=WAIT_S)
    robot.send(look(5, timestep=70, state=20.0, session=2), look(6, timestep=0, session=3))
    assert robot.receive() == Skipped(5, "superseded")
    engine.gate.set()
    assert robot.receive().observation == 4
    assert robot.receive().observation == 6


def test_a_late_success_of_the_old_session_is_not_held_against_the_new(robot: Robot, engine: HeldEngine) -> None:
    engine.gate.clear()
    robot.send(look(1, timestep=0))
    engine.sizes.get(timeout=WAIT_S)
    robot.send(look(2, timestep=7, session=2), look(3, timestep=8, session=2, state=0.1))
    assert robot.receive() == Skipped(2, "superseded")
    engine.gate.set()
    assert [robot.receive().observation for _ in range(2)] == [1, 3]


def test_all_is_answered_before_a_stream_that_is_done_ends(robot: Robot, engine: HeldEngine) -> None:
    engine.gate.clear()
    robot.send(look(1, timestep=1))
    engine.sizes.get(timeout=WAIT_S)
    robot.send(look(2, timestep=2, state=9.0))
    robot.send_no_more()
    engine.gate.set()
    assert [robot.receive().observation for _ in range(2)] == [1, 2]
    with pytest.raises(StopIteration):
        robot.receive()


def test_a_robot_that_vanishes_in_mid_batch_leaves_the_others_alone(
    server: PolicyServer, engine: HeldEngine, policy: Policy, robot: Robot
) -> None:
    shared, gone = threading.Event(), threading.Event()

    def hold(batch: Mapping[str, Any]) -> None:
        if len(batch["observation.state"]) == 2:
            shared.set()
            assert gone.wait(WAIT_S)

    engine.spoil = hold
    engine.gate.clear()
    with Robot(server.address, hello_to(policy)) as other:
        with Robot(server.address, hello_to(policy)) as vanishing:
            robot.send(look(1))
            assert engine.sizes.get(timeout=WAIT_S) == 1
            for each in (other.welcomed(), vanishing.welcomed()):
                each.send(look(1))
                each.send_bytes(codec.encode_ping(Ping(1)).SerializeToString())
                assert each.receive() == Ping(1)  # what was sent before it is in the slot
            engine.gate.set()
            assert shared.wait(5)
        gone.set()
        assert other.receive().batch == 2
    assert isinstance(robot.receive(), Chunk)


def test_a_peer_that_does_not_read_is_dropped(tiny: Path, policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    dropped = threading.Event()
    monkeypatch.setattr(refusals.log, "warning", lambda message, *args: dropped.set())
    limits = LimitsConfig(observations_per_second=0)  # or it would be too many before it is too much
    with (
        serving(tiny, limits=limits) as server,
        Robot(server.address, hello_to(policy)) as robot,
        Robot(server.address, hello_to(policy)) as deaf,
    ):
        robot.welcomed()
        deaf.welcomed()
        for id in range(1, 20_000):  # pongs of more than the connection's window and the outbox together
            deaf.send_bytes(codec.encode_ping(Ping(id)).SerializeToString())
        assert dropped.wait(10)
        assert isinstance(robot.ask(look(1)), Chunk)
        assert status_of(deaf)[0] is grpc.StatusCode.CANCELLED


@pytest.mark.parametrize("end", ["fault", "cancel", "no more"])
def test_nothing_of_a_session_outlives_its_stream(
    tiny: Path, policy: Policy, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Not even in a cycle that waits for the collector: its last pictures are large."""
    opened: list[weakref.ref[Session]] = []
    let_go = threading.Event()

    class Watched(Session):
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            opened.append(weakref.ref(self, lambda _: let_go.set()))

    monkeypatch.setattr(model, "Session", Watched)
    with serving(tiny) as server:
        gc.collect()
        gc.disable()
        try:
            with Robot(server.address, hello_to(policy)) as robot:
                robot.welcomed().ask(look(1))
                if end == "fault":
                    robot.send_bytes(b"\xff\xff")
                    assert status_of(robot)[0] is grpc.StatusCode.INVALID_ARGUMENT
                elif end == "cancel":
                    robot.call.cancel()
                else:
                    robot.send_no_more()
                    assert status_of(robot)[0] is grpc.StatusCode.OK
            assert let_go.wait(WAIT_S)
        finally:
            gc.enable()


def test_a_session_that_is_closed_keeps_no_observation(policy: Policy) -> None:
    """Also if its reader brings one more, or its inference ends then."""
    queue: list[Any] = []
    outbox = Outbox(8, lambda: None)
    keys = match_keys(hello_to(policy), policy)
    session = Session(
        hello_to(policy, similarity_tolerance=1.0),
        policy,
        keys,
        observations=1,
        name="arm",
        share=(1,),
        queue=mock_queue(queue),
        decoding=DecodingTurns(1),
        outbox=outbox,
    )
    session.feed(look(1), 0.0)
    work = queue.pop().take()
    assert work is not None
    session.close()
    timing = Timing(wait=0.0, prepare=0.0, infer=0.0, inject=0.0, batch=1, ready_s=0.0)
    work.done(np.zeros((4, 3), np.float32), timing)
    session.feed(look(2, timestep=1), 0.0)
    assert session.waiting_s == 0.0
    assert session._filter.verdict(look(3)) is None  # which would be similar to the first


def mock_queue(submitted: list[Any]) -> Any:
    return SimpleNamespace(submit=submitted.append)


MALFORMED: dict[str, bytes] = {
    "noise": b"\xff\xff",
    "nothing": b"",
    "another hello": codec.encode_hello(hello_to(Policy("t", "act", b"", (), (), (), 1, 30.0))).SerializeToString(),
    "piece first": pb.ClientMessage(piece=pb.FramePiece(observation=1, data=b"x")).SerializeToString(),
    "nan": codec.encode_observation(look(2, state=float("nan")))[0].SerializeToString(),
    "two joints": codec.encode_observation(
        Observation(id=2, session=1, timestep=0, must_go=False, state=np.zeros(2, np.float32))
    )[0].SerializeToString(),
    "replayed": codec.encode_observation(look(1))[0].SerializeToString(),
    "older session": codec.encode_observation(look(2, session=0))[0].SerializeToString(),
    "frame": codec.encode_observation(look(2, frames=(Frame.raw("front", np.zeros((2, 2, 3), np.uint8)),)))[
        0
    ].SerializeToString(),
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_message_ends_its_stream_and_no_other(
    server: PolicyServer, policy: Policy, robot: Robot, data: bytes
) -> None:
    with Robot(server.address, hello_to(policy)) as liar:
        assert isinstance(liar.welcomed().ask(look(1)), Chunk)
        liar.send_bytes(data)
        code, sentence = status_of(liar)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert sentence
    assert isinstance(robot.ask(look(1)), Chunk)


def test_a_defect_of_ours_ends_its_stream_with_an_id(
    server: PolicyServer,
    policy: Policy,
    robot: Robot,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def feed(session: Session, observation: Observation, receive_s: float) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch, Robot(server.address, hello_to(policy)) as unlucky:
        patch.setattr(Session, "feed", feed)
        unlucky.welcomed().send(look(1))
        code, sentence = status_of(unlucky)
    assert code is grpc.StatusCode.INTERNAL
    assert sentence.removeprefix("the server failed ") in caplog.text
    assert isinstance(robot.ask(look(1)), Chunk)


def test_client_pings_during_a_long_inference_are_permitted(
    server: PolicyServer, engine: HeldEngine, policy: Policy
) -> None:
    """10 s pings against 35 s of inference, both faster: as gRPC comes, it cuts the connection at the third ping."""
    options = (
        ("grpc.keepalive_time_ms", 1_100),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    )
    with Robot(server.address, hello_to(policy), options=options) as robot:
        robot.welcomed()
        engine.gate.clear()
        robot.send(look(1))
        threading.Timer(5.5, engine.gate.set).start()
        assert isinstance(robot.receive(), Chunk)


def test_must_go_first_then_the_earliest_deadline(tiny: Path, engines: Engines, policy: Policy) -> None:
    with serving(tiny, max_batch=1) as server, ExitStack() as stack:
        first, *robots = (stack.enter_context(Robot(server.address, hello_to(policy))).welcomed() for _ in range(4))
        engine = engines["tiny"]
        engine.gate.clear()
        first.send(look(1))
        engine.sizes.get(timeout=WAIT_S)
        order: list[float] = []
        engine.spoil = lambda batch: order.append(float(batch["observation.state"][0, 0]))
        waiting = ({"runs_dry_in_s": 5.0}, {"runs_dry_in_s": 0.5}, {"must_go": True, "runs_dry_in_s": 0.0})
        for name, (robot, urgency) in enumerate(zip(robots, waiting, strict=True)):
            robot.send(look(1, state=float(name), **urgency))
            robot.send_bytes(codec.encode_ping(Ping(1)).SerializeToString())
            assert robot.receive() == Ping(1)
        engine.gate.set()
        for robot in robots:
            assert isinstance(robot.receive(), Chunk)
    assert order == [0.0, 2.0, 1.0, 0.0]  # the one that was being run, then by urgency


def test_an_injected_delay_is_a_stage_of_its_own(tiny: Path, policy: Policy) -> None:
    with serving(tiny, inject_latency_ms=100) as server, Robot(server.address, hello_to(policy)) as robot:
        times = robot.welcomed().ask(look(1)).times
        assert 0.1 <= times.inject < 0.2
        assert times.infer < 0.05
