"""Bytes to a protobuf message, but only one of a kind that is due, and no larger than that kind may be.

Parsed, a message can take thirty times its bytes (an empty Joint is two bytes here and fifty-six there). A message of
ours is one field and nothing else, so that kind and size can be read from its first bytes before anything is parsed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

from google.protobuf.message import DecodeError

from edge_runtime.errors import ProtocolError
from edge_runtime.wire import limits
from edge_runtime.wire import policy_pb2 as pb
from edge_runtime.wire.messages import Policy

_Message = TypeVar("_Message", pb.ClientMessage, pb.ServerMessage)

# Bytes of each kind at most, where no policy says more. What is not named here holds a policy: names, all in all.
_NAMES = 1 << 18
_HEADER = 1 << 16
FROM_ROBOT: Mapping[str, int] = MappingProxyType({"observation": _HEADER, "piece": limits.PIECE + 64, "ping": 16})
FROM_SERVER: Mapping[str, int] = MappingProxyType(
    {"chunk": 1 << 10, "skipped": 64, "failure": 1 << 14, "pong": 16, "received": 32}
)


def from_robot(policy: Policy) -> Mapping[str, int]:
    """What a robot may send that runs `policy`: its header holds the state, the extra state and the plan."""
    numbers = len(policy.joints) * (1 + policy.chunk_size) + sum(vector.dimension for vector in policy.extra_state)
    return {**FROM_ROBOT, "observation": _HEADER + 4 * numbers}


def from_server(policy: Policy) -> Mapping[str, int]:
    """What a server may send that runs `policy`: a chunk holds a row for each of its actions."""
    return {**FROM_SERVER, "chunk": FROM_SERVER["chunk"] + 4 * policy.chunk_size * len(policy.joints)}


def parse(cls: type[_Message], data: bytes, most: Mapping[str, int]) -> _Message:
    """The message in `data`; ProtocolError when the bytes are not one, or are more than its kind may be (`most`)."""
    kind = _kind(cls, data)
    if len(data) > most.get(kind, _NAMES):
        raise ProtocolError(f"stream: {kind} of {len(data)} bytes, expected at most {most.get(kind, _NAMES)}")
    try:
        return cls.FromString(data)
    except DecodeError as error:
        raise ProtocolError("stream: got bytes that are not a message") from error


def parse_description(data: bytes) -> pb.ServerDescription:
    """The answer to Describe."""
    if len(data) > limits.DESCRIPTION:
        raise ProtocolError(f"description: {len(data)} bytes, expected at most {limits.DESCRIPTION}")
    try:
        return pb.ServerDescription.FromString(data)
    except DecodeError as error:
        raise ProtocolError("description: got bytes that are not one") from error


def _kind(cls: type[_Message], data: bytes) -> str:
    """The name of the one field that `data` consists of: key, length as a varint, content."""
    if not data:
        raise ProtocolError("stream: got nothing")
    field = cls.DESCRIPTOR.fields_by_number.get(data[0] >> 3)
    length = start = 0
    for start, byte in enumerate(data[1:6], start=2):
        length |= (byte & 0x7F) << 7 * (start - 2)
        if byte < 0x80:
            break
    if field is None or data[0] & 7 != 2 or start + length != len(data):
        raise ProtocolError("stream: got bytes that are not one message of a kind that this version knows")
    return str(field.name)
