"""The session protocol as a state machine: whatever a peer says in whatever order, the server answers as it must.

The peer's stream is modelled: what was said decides whether it goes on and what must be answered. An honest robot on
a stream of its own asks in between and always gets its chunk.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from edge_runtime.wire import codec
from edge_runtime.wire import policy_pb2 as pb
from edge_runtime.wire.messages import Chunk, Frame, Ping, Policy, Skipped
from policy_server import bundle
from policy_server.config import LimitsConfig
from policy_server.server import PolicyServer
from scripts.rig.bundles import write_bundle
from scripts.rig.robots import Robot, hello_to, look, status_of
from tests.policy_server.conftest import serving

REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.NOT_FOUND,
}
PING = b"\x22"  # the first byte of one


class Stage:
    """One server for all runs: a run is a peer's life on it."""

    def __init__(self) -> None:
        self._open = ExitStack()
        folder = Path(self._open.enter_context(TemporaryDirectory()))
        path = write_bundle(folder / "seeing", name="seeing", cameras=[("front", 600, 600)])
        self.policy: Policy = bundle.load(path).policy
        limits = LimitsConfig(observations_per_second=0)
        self.server: PolicyServer = self._open.enter_context(serving(path, max_sessions=4, limits=limits))
        self.honest = self._open.enter_context(Robot(self.server.address, hello_to(self.policy), timeout_s=300))
        self.honest.welcomed()
        self.asked = 0

    def close(self) -> None:
        self._open.close()


class Peer(RuleBasedStateMachine):
    stage: Stage

    def __init__(self) -> None:
        super().__init__()
        self.robot: Robot | None = None
        self.welcomed = False
        self.last_id, self.last_session = -1, 0
        self.pending: list[bytes] = []  # pieces that are to follow the header that was sent
        self.timestep = 0
        self.frame = Frame.raw("front", np.full((600, 600, 3), 9, np.uint8))  # takes two pieces

    def teardown(self) -> None:
        if self.robot is not None:
            self.robot.__exit__(None, None, None)  # maybe in the middle of it all

    # What an honest peer says.

    @initialize()
    def connect(self) -> None:
        self.robot = Robot(self.stage.server.address, None)

    @precondition(lambda self: self.robot is not None and not self.welcomed)
    @rule()
    def greet(self) -> None:
        self._say(codec.encode_hello(hello_to(self.stage.policy)))
        self._robot.welcomed()
        self.welcomed = True

    @precondition(lambda self: self.welcomed)
    @rule(id=st.integers(0, 2**64 - 1))
    def ping(self, id: int) -> None:
        """Also in the middle of an observation."""
        self._say(codec.encode_ping(Ping(id)))
        assert self._robot.receive() == Ping(id)

    @precondition(lambda self: self.welcomed and not self.pending)
    @rule(
        step=st.integers(1, 1 << 20),
        session_step=st.sampled_from([0, 0, 1, 1 << 40]),
        timestep=st.integers(0, 1 << 53),
        must_go=st.booleans(),
        runs_dry_in_s=st.floats(0, 1e9, width=32),
    )
    def begin(self, step: int, session_step: int, timestep: int, must_go: bool, runs_dry_in_s: float) -> None:
        """The header of an observation that fits."""
        self.last_id += step
        self.last_session += session_step
        header, *pieces = codec.encode_observation(
            look(
                self.last_id,
                timestep=timestep,
                must_go=must_go,
                session=self.last_session,
                frames=(self.frame,),
                runs_dry_in_s=runs_dry_in_s,
            )
        )
        self._say(header)
        self.pending = [piece.SerializeToString() for piece in pieces]
        self.timestep = timestep

    @precondition(lambda self: self.pending)
    @rule()
    def go_on(self) -> None:
        """Its next piece; with the last one an answer is due, and nothing else may come."""
        self._robot.send_bytes(self.pending.pop(0))
        if self.pending:
            return
        answer = self._robot.receive()
        assert isinstance(answer, Chunk | Skipped)
        assert answer.observation == self.last_id
        if isinstance(answer, Chunk):
            assert (answer.session, answer.first_timestep) == (self.last_session, self.timestep)
            assert np.isfinite(answer.actions).all()

    @precondition(lambda self: self.welcomed and not self.pending)
    @rule()
    def leave(self) -> None:
        """Nothing more is said: the stream ends well."""
        self._robot.send_no_more()
        assert status_of(self._robot)[0] is grpc.StatusCode.OK
        self._begin_anew()

    # What nobody may say. Each ends the stream, at once and with its reason.

    @precondition(lambda self: self.robot is not None)
    @rule(data=st.binary(max_size=300))
    def noise(self, data: bytes) -> None:
        if data[:1] != PING:  # which a few bytes may well be
            self._offend(data)

    @precondition(lambda self: self.welcomed)
    @rule()
    def greet_again(self) -> None:
        self._offend(codec.encode_hello(hello_to(self.stage.policy)).SerializeToString())

    @precondition(lambda self: self.robot is not None and not self.welcomed)
    @rule(
        changes=st.sampled_from(
            [{"fps": 25.0}, {"cameras": ()}, {"model": "other"}, {"digest": bytes(32)}, {"protocol_version": 9}]
        )
    )
    def greet_wrongly(self, changes: dict[str, Any]) -> None:
        self._offend(codec.encode_hello(hello_to(self.stage.policy, **changes)).SerializeToString())

    @precondition(lambda self: self.robot is not None and not self.pending)
    @rule(observation=st.integers(0, 9), frame=st.integers(0, 3), data=st.binary(min_size=1, max_size=9))
    def piece_of_nothing(self, observation: int, frame: int, data: bytes) -> None:
        piece = pb.FramePiece(observation=observation, frame=frame, data=data)
        self._offend(pb.ClientMessage(piece=piece).SerializeToString())

    @precondition(lambda self: self.pending)
    @rule(
        changes=st.dictionaries(st.sampled_from(["observation", "frame", "offset"]), st.integers(0, 2**31), min_size=1)
    )
    def piece_out_of_order(self, changes: dict[str, int]) -> None:
        message = pb.ClientMessage.FromString(self.pending[0])
        for name, value in changes.items():
            setattr(message.piece, name, value)
        if message.SerializeToString() != self.pending[0]:
            self._offend(message.SerializeToString())

    @precondition(lambda self: self.pending)
    @rule()
    def header_within_another(self) -> None:
        header = codec.encode_observation(look(self.last_id + 1, session=self.last_session, frames=(self.frame,)))[0]
        self._offend(header.SerializeToString())

    @precondition(lambda self: self.welcomed and not self.pending)
    @rule(
        changes=st.sampled_from(
            [
                {"timestep": -1},
                {"timestep": (1 << 53) + 1},
                {"state": float("nan")},
                {"state": float("inf")},
                {"runs_dry_in_s": float("nan")},
                {"runs_dry_in_s": -1.0},
                {"task": "x" * 5000},
                {"frames": ()},
                {"extra_state": {"observation.other": np.zeros(2, np.float32)}},
            ]
        )
    )
    def observe_wrongly(self, changes: dict[str, Any]) -> None:
        values = {"session": self.last_session, "frames": (self.frame,)} | changes
        self._offend(codec.encode_observation(look(self.last_id + 1, **values))[0].SerializeToString())

    @precondition(lambda self: self.welcomed and not self.pending and self.last_id >= 0)
    @rule(back=st.integers(0, 3))
    def replay(self, back: int) -> None:
        """An id that was, or a session that is over."""
        id = max(0, self.last_id - back)
        header = codec.encode_observation(look(id, session=self.last_session, frames=(self.frame,)))[0]
        self._offend(header.SerializeToString())

    # What always holds.

    @invariant()
    def the_honest_robot_is_served(self) -> None:
        stage = self.stage
        stage.asked += 1
        stage.honest.send(look(stage.asked, timestep=stage.asked, frames=(self.frame,)), jpeg_quality=50)
        answer = stage.honest.receive()
        assert isinstance(answer, Chunk)
        assert answer.observation == answer.first_timestep == stage.asked

    # How.

    @property
    def _robot(self) -> Robot:
        assert self.robot is not None
        return self.robot

    def _say(self, message: pb.ClientMessage) -> None:
        self._robot.send_bytes(message.SerializeToString())

    def _offend(self, data: bytes) -> None:
        self._robot.send_bytes(data)
        code, sentence = status_of(self._robot)
        assert code in REFUSALS, (code, sentence)
        assert sentence
        assert sentence.isprintable()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._robot.__exit__(None, None, None)
        self.welcomed, self.pending = False, []
        self.last_id, self.last_session = -1, 0
        self.connect()


def test_whatever_is_said_in_whatever_order() -> None:
    stage = Stage()
    try:
        machine = type("Machine", (Peer,), {"stage": stage})
        profile = settings(
            max_examples=15,
            stateful_step_count=25,
            suppress_health_check=list(HealthCheck),
        )
        run_state_machine_as_test(machine, settings=profile)
    finally:
        stage.close()
    assert stage.asked > 60
