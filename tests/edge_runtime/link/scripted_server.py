"""A policy server that does what a test tells it: real gRPC on loopback, answers from a function."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field

import grpc
import numpy as np

from edge_runtime.wire import codec, policy_pb2
from edge_runtime.wire.messages import (
    Answer,
    Chunk,
    Failure,
    Hello,
    Joint,
    Observation,
    Policy,
    ServerDescription,
    Welcome,
)

JOINTS = (Joint("a.pos", "degrees"), Joint("b.pos", "degrees"))
POLICY = Policy("scripted", "act", bytes(range(32)), JOINTS, (), (), chunk_size=10, fps=30.0)
HELLO = Hello(joints=JOINTS, cameras=(), extra_state=(), fps=30.0, actions_per_chunk=10)


def chunk_for(observation: Observation, value: float = 1.0, rows: int = 10) -> Chunk:
    actions = np.full((rows, len(JOINTS)), value, np.float32)
    return Chunk(observation.id, observation.session, observation.timestep, actions, POLICY.digest)


@dataclass
class ScriptedServer:
    """`answer(observation)` is what comes back; `refuse` ends every stream with that status instead of a welcome."""

    answer: Callable[[Observation], Answer | None] = chunk_for
    policy: Policy = POLICY
    refuse: tuple[grpc.StatusCode, str] | None = None
    silent: bool = False  # accepts a stream and says nothing
    leave_after_welcome: bool = False
    announcements: list[policy_pb2.ServerMessage] = field(default_factory=list)  # said before the next answer
    hellos: list[Hello] = field(default_factory=list)
    greeted: threading.Event = field(default_factory=threading.Event)
    port: int = 0

    def __post_init__(self) -> None:
        self._end = threading.Event()
        self._server = self._start(0)

    def _start(self, port: int) -> grpc.Server:
        server = grpc.server(futures.ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        server.add_generic_rpc_handlers((self._methods(),))
        self.port = server.add_insecure_port(f"127.0.0.1:{port}")
        server.start()
        return server

    def _methods(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            "edge_runtime.policy.v1.PolicyService",
            {
                "Describe": grpc.unary_unary_rpc_method_handler(
                    self.Describe,
                    request_deserializer=policy_pb2.DescribeRequest.FromString,
                    response_serializer=policy_pb2.ServerDescription.SerializeToString,
                ),
                "Act": grpc.stream_stream_rpc_method_handler(
                    self.Act,
                    request_deserializer=policy_pb2.ClientMessage.FromString,
                    response_serializer=policy_pb2.ServerMessage.SerializeToString,
                ),
            },
        )

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def kill(self) -> None:
        """Every stream breaks at once."""
        self._end.set()
        self._server.stop(0).wait()

    def restart(self) -> None:
        """Listen again on the same port."""
        self._end = threading.Event()
        self.greeted.clear()
        self._server = self._start(self.port)

    def Describe(self, request: object, context: grpc.ServicerContext) -> policy_pb2.ServerDescription:
        return codec.encode_description(ServerDescription(1, "scripted", (self.policy,)))

    def Act(
        self, requests: Iterator[policy_pb2.ClientMessage], context: grpc.ServicerContext
    ) -> Iterator[policy_pb2.ServerMessage]:
        if self.silent:
            self._end.wait()
            return
        if self.refuse is not None:
            context.abort(*self.refuse)
        hello = codec.decode_hello(next(requests))
        self.hellos.append(hello)
        yield codec.encode_welcome(Welcome(self.policy))
        self.greeted.set()
        if self.leave_after_welcome:
            return
        assembler = codec.ObservationAssembler(self.policy)
        for request in requests:
            if request.WhichOneof("body") == "ping":
                yield codec.encode_pong(codec.decode_ping(request))
                continue
            complete = assembler.feed(request)
            if complete is not None:
                while self.announcements:
                    yield self.announcements.pop(0)
                reply = self.answer(complete[0])
                if reply is not None:
                    yield _encode(reply)


def _encode(answer: Answer) -> policy_pb2.ServerMessage:
    if isinstance(answer, Chunk):
        return codec.encode_chunk(answer)
    if isinstance(answer, Failure):
        return codec.encode_failure(answer)
    return codec.encode_skipped(answer)
