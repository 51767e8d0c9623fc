"""One message, of a kind that is due and of a size that it may have, before anything is parsed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_runtime.errors import ProtocolError
from edge_runtime.wire import codec, envelope, limits
from edge_runtime.wire import policy_pb2 as pb
from edge_runtime.wire.messages import Chunk, ExtraState, Frame, Joint, Observation, Ping, Policy, Welcome

JOINTS = tuple(Joint(f"joint_{index}.pos", "degrees") for index in range(6))
POLICY = Policy("p", "act", bytes(32), JOINTS, (), (ExtraState("observation.x", 50_000),), chunk_size=100, fps=30.0)


def varint(number: int) -> bytes:
    encoded = b""
    while number > 0x7F:
        encoded += bytes([number & 0x7F | 0x80])
        number >>= 7
    return encoded + bytes([number])


def test_the_largest_of_each_kind_passes() -> None:
    name = "é" * limits.NAME  # two bytes each
    joints = tuple(Joint(f"{index:03}{name}"[: limits.NAME], name) for index in range(limits.JOINTS))
    large = Policy(name, "act", bytes(32), joints, (), (), limits.CHUNK, 30.0)
    rows = np.full((limits.CHUNK, limits.JOINTS), 1.5, np.float32)
    said = codec.encode_chunk(Chunk(2**64 - 1, 2**64 - 1, 1 << 53, rows, bytes(32))).SerializeToString()
    assert envelope.parse(pb.ServerMessage, said, envelope.from_server(large)).chunk.joints == limits.JOINTS
    welcome = codec.encode_welcome(Welcome(large)).SerializeToString()
    assert envelope.parse(pb.ServerMessage, welcome, envelope.FROM_SERVER).HasField("welcome")
    piece = pb.FramePiece(observation=2**64 - 1, frame=2**32 - 1, offset=2**64 - 1, data=bytes(limits.PIECE))
    data = pb.ClientMessage(piece=piece).SerializeToString()
    assert envelope.parse(pb.ClientMessage, data, envelope.FROM_ROBOT).HasField("piece")
    seen = Observation(
        2**64 - 1,
        2**64 - 1,
        1 << 53,
        True,
        np.zeros(6, np.float32),
        {"observation.x": np.ones(50_000, np.float32)},
        tuple(Frame(f"{index}{name}"[: limits.NAME], 8192, 8192, "raw", b"") for index in range(limits.CAMERAS)),
        task="é" * limits.TASK,
    )
    header = codec.encode_observation(seen)[0].SerializeToString()
    assert envelope.parse(pb.ClientMessage, header, envelope.from_robot(POLICY)).HasField("observation")
    ping = codec.encode_ping(Ping(2**64 - 1)).SerializeToString()
    assert envelope.parse(pb.ClientMessage, ping, envelope.FROM_ROBOT).HasField("ping")


def test_a_server_cannot_say_more_than_its_policy_has_rows() -> None:
    most = envelope.from_server(POLICY)
    for kind, size in (("chunk", 4 * 600 + 1024), ("failure", 1 << 14), ("skipped", 64), ("welcome", 1 << 18)):
        number = pb.ServerMessage.DESCRIPTOR.fields_by_name[kind].number
        data = bytes([number << 3 | 2]) + varint(size) + bytes(size)
        with pytest.raises(ProtocolError, match=f"stream: {kind} of {len(data)} bytes, expected at most {size}"):
            envelope.parse(pb.ServerMessage, data, most)
    with pytest.raises(ProtocolError, match="description: 1048577 bytes, expected at most 1048576"):
        envelope.parse_description(bytes((1 << 20) + 1))


@pytest.mark.parametrize(
    "data",
    [
        b"\x22",  # a key without a length
        b"\x22\x01",  # less than it says
        b"\x22\x00\x00",  # more than it says
        b"\x22\x02\x08\x01\x22\x02\x08\x01",  # two
        b"\x20\x01",  # a number in its place
        b"\x7a\x00",  # a kind of a later version
        b"\x22\x80\x80\x80\x80\x80\x00",  # a length that never ends
        b"\x00\x00",
        b"\xff\xff\xff\xff\xff\xff",
    ],
)
def test_what_is_not_one_message_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="stream: got bytes that are not"):
        envelope.parse(pb.ClientMessage, data, envelope.FROM_ROBOT)


def test_nothing_is_refused() -> None:
    with pytest.raises(ProtocolError, match="stream: got nothing"):
        envelope.parse(pb.ClientMessage, b"", envelope.FROM_ROBOT)


@given(st.binary(max_size=64))
def test_any_bytes_are_a_message_or_a_protocol_error(data: bytes) -> None:
    for kind, most in ((pb.ClientMessage, envelope.FROM_ROBOT), (pb.ServerMessage, envelope.from_server(POLICY))):
        try:
            message = envelope.parse(kind, data, most)
        except ProtocolError:
            continue
        assert message.WhichOneof("body") is not None
