"""A server that lies to a robot, byte by byte over a real stream: the run ends at once, with exit 76 and one line."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager

import grpc
import numpy as np
import pytest

from edge_runtime.errors import ProtocolError
from edge_runtime.link.channel import Access
from edge_runtime.link.connection import ACT, DESCRIBE
from edge_runtime.link.stream import PolicyStream
from edge_runtime.wire import codec
from edge_runtime.wire import policy_pb2 as pb
from edge_runtime.wire.messages import Chunk, Ping, Policy, Welcome
from tests.edge_runtime.link.scripted_server import HELLO, POLICY
from tests.edge_runtime.link.test_stream import Recorder

WELCOME = codec.encode_welcome(Welcome(POLICY)).SerializeToString()
WITHIN_S = 10.0


@contextmanager
def saying(*words: bytes) -> Iterator[str]:
    """A server that answers every call with these bytes and then goes on listening; its address."""

    def answer(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        yield from words
        for _ in requests:
            pass

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
            return grpc.stream_stream_rpc_method_handler(answer) if details.method in (ACT, DESCRIBE) else None

    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((Handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


def said_by_the_robot(words: Sequence[bytes]) -> str:
    with saying(*words) as address:
        stream = PolicyStream(Access(address))
        guard = threading.Timer(WITHIN_S, stream.stop)
        guard.start()
        try:
            with pytest.raises(ProtocolError) as error:
                stream.run(HELLO, Recorder())
        finally:
            guard.cancel()
        assert error.value.exit_code == 76
        return str(error.value)


def chunk(rows: int = 10, joints: int = 2) -> bytes:
    actions = np.zeros((rows, joints), np.float32)
    return codec.encode_chunk(Chunk(1, 1, 0, actions, POLICY.digest)).SerializeToString()


OTHER = Policy("scripted", "act", bytes(32), POLICY.joints[:1], (), (), chunk_size=10, fps=30.0)

LIES: dict[str, tuple[list[bytes], str]] = {
    "noise": ([b"\xff\xff\xff"], "stream: got bytes that are not"),
    "nothing": ([b""], "stream: got nothing"),
    "no welcome": ([chunk()], "stream: expected welcome, got chunk"),
    "another robot": ([codec.encode_welcome(Welcome(OTHER)).SerializeToString()], "welcomed another robot"),
    "welcomed twice": ([WELCOME, WELCOME], "welcomed twice"),
    "more rows than the policy has": ([WELCOME, chunk(11)], "chunk: rows: 11 is not in 1..10"),
    "more joints": ([WELCOME, chunk(5, 4)], "chunk: 20 actions of 4 joints, the policy has 2"),
    "a huge chunk": ([WELCOME, chunk(4096, 2)], "stream: chunk of "),
    "an unasked pong": (
        [WELCOME, codec.encode_pong(Ping(1)).SerializeToString()],
        "the server answered ping 1, which was not sent",
    ),
    "seconds that are none": (
        [WELCOME, pb.ServerMessage(pace=pb.Pace(interval_s=float("nan"))).SerializeToString()],
        "pace: interval_s: nan is not a finite number",
    ),
}


@pytest.mark.parametrize(("words", "said"), LIES.values(), ids=LIES.keys())
def test_a_lie_ends_the_run(words: list[bytes], said: str) -> None:
    sentence = said_by_the_robot(words)
    assert said in sentence
    assert sentence.isprintable()


@pytest.mark.parametrize(
    ("description", "said"),
    [
        (b"\xff", "description: got bytes that are not one"),
        (bytes((1 << 20) + 1), "description: 1048577 bytes, expected at most"),
        (pb.ServerDescription(protocol_version=7).SerializeToString(), "protocol version: robot 1, server 7"),
        (pb.ServerDescription(protocol_version=1).SerializeToString(), "policies: 0 is not in 1..64"),
    ],
)
def test_a_description_that_lies_is_refused(description: bytes, said: str) -> None:
    with saying(description) as address, pytest.raises(ProtocolError, match=said):
        PolicyStream(Access(address)).describe(threading.Event())
