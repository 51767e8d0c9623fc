"""What a hostile peer does, each as a function of the server's address that yields the statuses it got."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import cv2
import grpc
import numpy as np

from edge_runtime.wire import codec
from edge_runtime.wire import policy_pb2 as pb
from edge_runtime.wire.messages import Failure, Frame, Observation, Ping, Policy
from scripts.rig.robots import ACT, DESCRIBE, Robot, hello_to, look, status_of

OK = grpc.StatusCode.OK
INVALID = grpc.StatusCode.INVALID_ARGUMENT
UNFIT = grpc.StatusCode.FAILED_PRECONDITION
UNKNOWN_MODEL = grpc.StatusCode.NOT_FOUND
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
LATE = grpc.StatusCode.DEADLINE_EXCEEDED
GONE = grpc.StatusCode.CANCELLED

CHECK = "/grpc.health.v1.Health/Check"
WATCH = "/grpc.health.v1.Health/Watch"
Statuses = Iterator[grpc.StatusCode]


@dataclass(frozen=True)
class Target:
    address: str
    policy: Policy

    def robot(self) -> Robot:
        """One that was welcomed, as every stranger can be on an open server."""
        return Robot(self.address, hello_to(self.policy)).welcomed()

    def observation(self, id: int, **changes: Any) -> Observation:
        """One that fits the policy."""
        frames = tuple(
            Frame.raw(camera.name, np.full((camera.height, camera.width, 3), 7, np.uint8))
            for camera in self.policy.cameras
        )
        extra = {vector.name: np.zeros(vector.dimension, np.float32) for vector in self.policy.extra_state}
        values: dict[str, Any] = {"frames": frames, "extra_state": extra} | changes
        return look(id, **values)

    def messages(self, id: int, **changes: Any) -> list[pb.ClientMessage]:
        return codec.encode_observation(self.observation(id, **changes))


def end_of(target: Target, *messages: bytes) -> grpc.StatusCode:
    """How a welcomed stream ends that says this, and then nothing more."""
    with target.robot() as robot:
        for message in messages:
            robot.send_bytes(message)
        robot.send_no_more()
        return status_of(robot)[0]


def random_fields(target: Target, seed: int = 6) -> Statuses:
    """Random bytes, numbers and lengths in every field of every message, one field at a time."""
    chance = random.Random(seed)
    hello = codec.encode_hello(hello_to(target.policy))
    header, piece, *_ = target.messages(1)
    for message in (hello, header, piece, codec.encode_ping(Ping(1))):
        kind = str(message.WhichOneof("body"))
        inner = getattr(message, kind)
        for field in inner.DESCRIPTOR.fields:
            for wire_type, content in (
                (VARINT, varint(chance.getrandbits(63))),
                (FIXED64, chance.randbytes(8)),
                (LENGTH, blob(chance.randbytes(9))),
                (LENGTH, blob(b"\xff" * 300)),
                (LENGTH, varint(2**32)),
            ):
                damaged = inner.SerializeToString() + bytes([field.number << 3 | wire_type]) + content
                number = message.DESCRIPTOR.fields_by_name[kind].number
                data = bytes([number << 3 | LENGTH]) + blob(damaged)
                if kind == "hello":
                    with Robot(target.address, None) as robot:
                        robot.send_bytes(data)
                        robot.send_no_more()
                        yield status_of(robot)[0]
                else:
                    before = [header.SerializeToString()] if kind == "piece" else []
                    yield end_of(target, *before, data)


def noise(target: Target, seed: int = 6) -> Statuses:
    """No message at all."""
    chance = random.Random(seed)
    for size in (0, 1, 2, 7, 100, 5000):
        yield end_of(target, chance.randbytes(size))


def broken_order(target: Target) -> Statuses:
    """Pieces twice, out of order, with gaps, of another frame or observation; a header in the middle of another."""
    header, *pieces = (message.SerializeToString() for message in target.messages(1))
    first = target.messages(1)[1].piece

    def piece(**changes: int) -> bytes:
        changed = pb.FramePiece()
        changed.CopyFrom(first)
        for name, value in changes.items():
            setattr(changed, name, value)
        return pb.ClientMessage(piece=changed).SerializeToString()

    yield end_of(target, *pieces)
    yield end_of(target, header, piece(offset=1))
    yield end_of(target, header, piece(frame=1))
    yield end_of(target, header, piece(frame=2**32 - 1))
    yield end_of(target, header, piece(observation=2))
    yield end_of(target, header, *pieces, *pieces)
    yield end_of(target, header, header)
    yield end_of(target, header, target.messages(2)[0].SerializeToString())
    empty = pb.ClientMessage(piece=pb.FramePiece(observation=1))
    yield end_of(target, header, empty.SerializeToString())


def never_ending(target: Target) -> Statuses:
    """A header, and a byte of its frame now and then, for ever."""
    header, whole, *_ = target.messages(1)
    with target.robot() as robot:
        robot.send_bytes(header.SerializeToString())
        for offset in range(3):
            data = whole.piece.data[offset : offset + 1]
            piece = pb.FramePiece(observation=1, frame=0, offset=offset, data=data)
            robot.send_bytes(pb.ClientMessage(piece=piece).SerializeToString())
        yield status_of(robot)[0]


def lying_dimensions(target: Target) -> Statuses:
    """Frames of another shape or size than the policy takes."""
    for changes in (
        {"height": 20_000, "width": 20_000, "size": 1_200_000_000},
        {"height": 0},
        {"width": 2**32 - 1},
        {"size": 2**64 - 1},
        {"size": 0},
        {"size": 1},
    ):
        header = target.messages(1)[0]
        for name, value in changes.items():
            setattr(header.observation.frames[0], name, value)
        yield end_of(target, header.SerializeToString())


def jpeg_bombs(target: Target) -> Statuses:
    """JPEG that unfolds to 20000 x 20000, or is cut off: each fails in band, and the stream goes on."""
    camera = target.policy.cameras[0]
    done, encoded = cv2.imencode(".jpg", np.zeros((camera.height, camera.width, 3), np.uint8))
    assert done
    honest = encoded.tobytes()
    said = struct.pack(">HH", camera.height, camera.width)
    bomb = honest.replace(said, struct.pack(">HH", 20_000, 20_000), 1)
    assert bomb != honest
    with target.robot() as robot:
        for id, data in enumerate((bomb, honest[: len(honest) // 2] + b"\xff\xd9", honest[:-9]), start=1):
            frames = (Frame(camera.name, camera.height, camera.width, "jpeg", data),)
            answer = robot.ask(target.observation(id, timestep=id, frames=frames))
            assert isinstance(answer, Failure), answer
            yield next(code for code in grpc.StatusCode if code.value[0] == answer.code)
        robot.send_no_more()
        yield status_of(robot)[0]


def not_numbers(target: Target) -> Statuses:
    """State and extra state that are not finite."""
    for value in (float("nan"), float("inf"), -float("inf")):
        yield end_of(target, target.messages(1, state=value)[0].SerializeToString())
        extra = {vector.name: np.full(vector.dimension, value, np.float32) for vector in target.policy.extra_state}
        yield end_of(target, target.messages(1, extra_state=extra)[0].SerializeToString())
    header = target.messages(1)[0]
    header.observation.runs_dry_in_s = float("nan")
    yield end_of(target, header.SerializeToString())


def foreign_sessions(target: Target) -> Statuses:
    """A session that was before, and the greatest and least there can be."""
    first = [message.SerializeToString() for message in target.messages(1, session=5)]
    yield end_of(target, *first, target.messages(2, session=4)[0].SerializeToString())
    yield end_of(target, *first, target.messages(2, session=0)[0].SerializeToString())
    last = [message.SerializeToString() for message in target.messages(1, session=2**64 - 1)]
    yield end_of(target, *last, target.messages(2, session=5)[0].SerializeToString())


def replays(target: Target) -> Statuses:
    """Messages that were sent before: of this stream, and a whole stream of somebody else."""
    recorded = [message.SerializeToString() for message in target.messages(1)]
    yield end_of(target, *recorded, *recorded)
    hello = codec.encode_hello(hello_to(target.policy)).SerializeToString()
    yield end_of(target, hello)
    with Robot(target.address, None) as robot:
        for message in (hello, *recorded):
            robot.send_bytes(message)
        robot.send_no_more()
        yield status_of(robot)[0]  # an old observation is an observation: who may ask gets its answer


def floods(target: Target) -> Statuses:
    """Headers and pings as fast as they go."""
    with target.robot() as robot:
        for id in range(1, 3000):
            robot.send_bytes(codec.encode_ping(Ping(id)).SerializeToString())
        yield status_of(robot)[0]


def thousand_connects(target: Target) -> Statuses:
    """A thousand sockets at once: silent, talking nonsense, or HTTP/2 and no more; then a thousand calls given up."""
    host, _, port = target.address.rpartition(":")
    sockets = [socket.create_connection((host, int(port))) for _ in range(1000)]
    for index, each in enumerate(sockets):
        with contextlib.suppress(OSError):  # closed already
            each.sendall((b"", b"GET / HTTP/1.1\r\n\r\n", PREFACE + SETTINGS)[index % 3])
    for each in sockets:
        each.close()
    with grpc.insecure_channel(target.address, (("grpc.use_local_subchannel_pool", 1),)) as channel:
        for _ in range(1000):
            channel.stream_stream("/edge_runtime.policy.v1.PolicyService/Act")(iter([b""])).cancel()
    yield OK


def never_reading(target: Target) -> Statuses:
    """Takes nothing of what it is sent: asks for more than may lie unread, or for little and then waits."""
    for pings in (400, 3):
        say = [
            codec.encode_hello(hello_to(target.policy)),
            *(codec.encode_ping(Ping(id)) for id in range(1, pings + 1)),
        ]
        with deaf(target.address) as peer:
            peer.begin(ACT)
            for message in say:
                peer.say(1, message.SerializeToString())
            peer.wait_for_ends(1)
        yield GONE


def never_reading_answers(target: Target) -> Statuses:
    """Asks about policies and health, more often than there are workers, and takes no answer."""
    for method in (DESCRIBE, CHECK, WATCH):
        with deaf(target.address) as peer:
            peer.begin(method, count=80)
            peer.wait_for_ends(80)
        yield GONE


class Deaf:
    """A peer over a bare socket whose HTTP/2 window is 0: not a byte of a message may be sent to it.

    `ended` are the streams of which the end was heard.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._heard = b""
        self._next = 1
        self._settings: dict[int, int] = {}
        self.ended: set[int] = set()
        connection.sendall(PREFACE + http2(4, 0, 0, b"\x00\x04\x00\x00\x00\x00"))

    def begin(self, method: str, count: int = 1) -> None:
        """So many calls with an empty message each."""
        for _ in range(count):
            self._connection.sendall(http2(1, 4, self._next, headers(method)))
            if method != ACT:
                self._connection.sendall(http2(0, 1, self._next, bytes(5)))
            self._next += 2

    def say(self, stream: int, message: bytes) -> None:
        self._connection.sendall(http2(0, 0, stream, b"\x00" + struct.pack(">I", len(message)) + message))

    def wait_for_ends(self, count: int) -> None:
        """Until so many of its calls were ended."""
        while len(self.ended) < count:
            self._hear()

    def most_streams(self) -> int:
        """SETTINGS_MAX_CONCURRENT_STREAMS (RFC 9113, 6.5.2)."""
        while 3 not in self._settings:
            self._hear()
        return self._settings[3]

    def _hear(self) -> None:
        more = self._connection.recv(1 << 16)
        assert more, "the whole connection was ended"
        self._heard += more
        while len(self._heard) >= 9:
            length = int.from_bytes(self._heard[:3], "big")
            if len(self._heard) < 9 + length:
                return
            kind, flags, stream = self._heard[3], self._heard[4], int.from_bytes(self._heard[5:9], "big")
            payload, self._heard = self._heard[9 : 9 + length], self._heard[9 + length :]
            if kind == 3 or (kind in (0, 1) and flags & 1):  # RST_STREAM, or END_STREAM
                self.ended.add(stream)
            elif kind == 4:
                self._settings.update(struct.iter_unpack(">HI", payload))
            elif kind == 6 and not flags & 1:
                self._connection.sendall(http2(6, 1, 0, payload))


@contextlib.contextmanager
def deaf(address: str) -> Iterator[Deaf]:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        yield Deaf(connection)


VARINT, FIXED64, LENGTH = 0, 1, 2  # protobuf's wire types
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def http2(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


SETTINGS = http2(4, 0, 0, b"")


def literal(name: bytes, value: bytes) -> bytes:
    """A header field in HPACK that is not indexed (RFC 7541, 6.2.2)."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def headers(method: str) -> bytes:
    return b"".join(
        literal(name, value)
        for name, value in (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", method.encode()),
            (b":authority", b"policy"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        )
    )


def varint(number: int) -> bytes:
    encoded = b""
    while number > 0x7F:
        encoded += bytes([number & 0x7F | 0x80])
        number >>= 7
    return encoded + bytes([number])


def blob(data: bytes) -> bytes:
    return varint(len(data)) + data


ATTACKS: dict[str, tuple[Callable[[Target], Statuses], set[grpc.StatusCode]]] = {
    "random bytes in every field": (random_fields, {INVALID, UNFIT, UNKNOWN_MODEL, OK}),
    "noise": (noise, {INVALID}),
    "broken piece order": (broken_order, {INVALID}),
    "never-ending observation": (never_ending, {LATE}),
    "dimensions that lie": (lying_dimensions, {INVALID}),
    "JPEG bombs": (jpeg_bombs, {INVALID, OK}),
    "state that is no number": (not_numbers, {INVALID}),
    "foreign sessions": (foreign_sessions, {INVALID}),
    "replayed messages": (replays, {INVALID, OK}),
    "floods": (floods, {EXHAUSTED, GONE}),  # too many, or too many unread
    "a thousand connects": (thousand_connects, {OK}),
    "a peer that never reads": (never_reading, {GONE}),
    "a peer that never reads what it asked": (never_reading_answers, {GONE}),
}
