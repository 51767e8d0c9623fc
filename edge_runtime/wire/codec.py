"""Messages to protobuf and back: both halves of each pair, side by side. Observations are in `observations`.

Every decode raises ProtocolError for anything that is not a valid message, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from edge_runtime.errors import ProtocolError
from edge_runtime.timing import SERVER_STAGES
from edge_runtime.wire import limits
from edge_runtime.wire import policy_pb2 as pb
from edge_runtime.wire.messages import (
    PROTOCOL_VERSION,
    Camera,
    Chunk,
    ExtraState,
    Failure,
    Guidance,
    Hello,
    Joint,
    Pace,
    Ping,
    Policy,
    Received,
    Replaced,
    Schedule,
    ServerDescription,
    ServerMessage,
    ServerTimes,
    Skipped,
    SkipReason,
    Welcome,
)
from edge_runtime.wire.observations import ObservationAssembler as ObservationAssembler
from edge_runtime.wire.observations import encode_observation as encode_observation

_REASONS: dict[pb.SkipReason, SkipReason] = {
    pb.SIMILAR: "similar",
    pb.ALREADY_PREDICTED: "already_predicted",
    pb.SUPERSEDED: "superseded",
}
_SCHEDULES: dict[pb.Schedule, Schedule] = {pb.ZEROS: "zeros", pb.ONES: "ones", pb.LINEAR: "linear", pb.EXP: "exp"}
_SCHEDULE_NUMBERS = {name: number for number, name in _SCHEDULES.items()}
_REASON_NUMBERS = {name: number for number, name in _REASONS.items()}


# The handshake: Describe -> ServerDescription, Hello -> Welcome.


def encode_description(description: ServerDescription) -> pb.ServerDescription:
    return pb.ServerDescription(
        protocol_version=description.protocol_version,
        server_version=description.server_version,
        policies=[_encode_policy(policy) for policy in description.policies],
    )


def decode_description(message: pb.ServerDescription) -> ServerDescription:
    """What the server offers; another protocol version is refused before the rest is read."""
    if message.protocol_version != PROTOCOL_VERSION:
        raise ProtocolError(f"protocol version: robot {PROTOCOL_VERSION}, server {message.protocol_version}")
    limits.whole("policies", len(message.policies), 1, limits.POLICIES)
    return ServerDescription(
        protocol_version=message.protocol_version,
        server_version=limits.text("server version", message.server_version),
        policies=tuple(_decode_policy(policy) for policy in message.policies),
    )


def encode_hello(hello: Hello) -> pb.ClientMessage:
    return pb.ClientMessage(
        hello=pb.Hello(
            protocol_version=hello.protocol_version,
            model=hello.model,
            joints=_encode_joints(hello.joints),
            cameras=_encode_cameras(hello.cameras),
            extra_state=_encode_extra_state(hello.extra_state),
            fps=hello.fps,
            actions_per_chunk=hello.actions_per_chunk,
            similarity_tolerance=hello.similarity_tolerance,
            robot=hello.robot,
            digest=hello.digest,
            image_tolerance=hello.image_tolerance,
            understands=hello.understands,
            guidance=_encode_guidance(hello.guidance) if hello.guidance else None,
        )
    )


def decode_hello(message: pb.ClientMessage) -> Hello:
    """The first message of a stream; whether it fits the policy is `handshake.differences`' question."""
    _expect(message, "hello")
    hello = message.hello
    return Hello(
        joints=_decode_joints(hello.joints),
        cameras=_decode_cameras(hello.cameras),
        extra_state=_decode_extra_state(hello.extra_state),
        fps=limits.number("fps", hello.fps),
        model=limits.text("model", hello.model),
        actions_per_chunk=limits.whole("actions_per_chunk", hello.actions_per_chunk, 0, limits.CHUNK),
        similarity_tolerance=limits.number("similarity_tolerance", hello.similarity_tolerance),
        robot=limits.text("robot", hello.robot),
        digest=_decode_digest(hello.digest) if hello.digest else b"",
        image_tolerance=limits.number("image_tolerance", hello.image_tolerance),
        guidance=_decode_guidance(hello.guidance) if hello.HasField("guidance") else None,
        protocol_version=hello.protocol_version,
        understands=_decode_understands(hello.understands),
    )


def encode_welcome(welcome: Welcome) -> pb.ServerMessage:
    return pb.ServerMessage(welcome=pb.Welcome(policy=_encode_policy(welcome.policy), understands=welcome.understands))


def decode_welcome(message: pb.ServerMessage) -> Welcome:
    _expect(message, "welcome")
    return Welcome(_decode_policy(message.welcome.policy), _decode_understands(message.welcome.understands))


# The stream: each observation is answered by a Chunk, a Skipped or a Failure; a Ping by a Ping.


def encode_chunk(chunk: Chunk) -> pb.ServerMessage:
    return pb.ServerMessage(
        chunk=pb.Chunk(
            observation=chunk.observation,
            session=chunk.session,
            first_timestep=chunk.first_timestep,
            joints=chunk.actions.shape[1],
            actions=chunk.actions.ravel().tolist(),
            digest=chunk.digest,
            times=pb.ServerTimes(**vars(chunk.times)),
            batch=chunk.batch,
        )
    )


def decode_chunk(message: pb.ServerMessage, policy: Policy) -> Chunk:
    """Actions of at most `policy.chunk_size` rows. Numbers that are not finite stay: the ring makes holes of them."""
    _expect(message, "chunk")
    chunk = message.chunk
    joints = len(policy.joints)
    rows, rest = divmod(len(chunk.actions), joints)
    if chunk.joints != joints or rest:
        raise ProtocolError(f"chunk: {len(chunk.actions)} actions of {chunk.joints} joints, the policy has {joints}")
    limits.whole("chunk: rows", rows, 1, policy.chunk_size)
    times = [limits.number(f"chunk: {stage} seconds", getattr(chunk.times, stage)) for stage in SERVER_STAGES]
    return Chunk(
        observation=chunk.observation,
        session=chunk.session,
        first_timestep=limits.whole("chunk: first timestep", chunk.first_timestep, 0, limits.TIMESTEP),
        actions=np.fromiter(chunk.actions, np.float32, rows * joints).reshape(rows, joints),
        digest=_decode_digest(chunk.digest),
        times=ServerTimes(*times),
        batch=limits.whole("chunk: batch", chunk.batch, 1, limits.CHUNK),
    )


def encode_skipped(skipped: Skipped) -> pb.ServerMessage:
    return pb.ServerMessage(skipped=pb.Skipped(observation=skipped.observation, reason=_REASON_NUMBERS[skipped.reason]))


def decode_skipped(message: pb.ServerMessage) -> Skipped:
    _expect(message, "skipped")
    skipped = message.skipped
    if skipped.reason not in _REASONS:
        raise ProtocolError(f"skipped: reason {skipped.reason} is not one of {limits.listing(_REASON_NUMBERS)}")
    return Skipped(skipped.observation, _REASONS[skipped.reason])


def encode_failure(failure: Failure) -> pb.ServerMessage:
    """The failure, its message made one line of bounded length."""
    return pb.ServerMessage(
        failure=pb.Failure(
            observation=failure.observation,
            code=failure.code,
            message=limits.sentence(failure.message),
            error_id=failure.error_id,
        )
    )


def decode_failure(message: pb.ServerMessage) -> Failure:
    _expect(message, "failure")
    failure = message.failure
    return Failure(
        observation=failure.observation,
        code=limits.whole("failure: code", failure.code, 1, 16),
        message=limits.sentence(failure.message),
        error_id=limits.text("failure: error id", failure.error_id),
    )


def encode_ping(ping: Ping) -> pb.ClientMessage:
    return pb.ClientMessage(ping=pb.Ping(id=ping.id))


def decode_ping(message: pb.ClientMessage) -> Ping:
    _expect(message, "ping")
    return Ping(message.ping.id)


def encode_pong(ping: Ping) -> pb.ServerMessage:
    return pb.ServerMessage(pong=pb.Ping(id=ping.id))


def encode_replaced(replaced: Replaced) -> pb.ServerMessage:
    return pb.ServerMessage(replaced=pb.Replaced(policy=_encode_policy(replaced.policy)))


def decode_replaced(message: pb.ServerMessage) -> Replaced:
    """Whether the policy fits is `handshake.successor_differences`' question."""
    _expect(message, "replaced")
    return Replaced(_decode_policy(message.replaced.policy))


def encode_pace(pace: Pace) -> pb.ServerMessage:
    return pb.ServerMessage(pace=pb.Pace(interval_s=pace.interval_s))


def decode_pace(message: pb.ServerMessage) -> Pace:
    _expect(message, "pace")
    return Pace(limits.number("pace: interval_s", message.pace.interval_s))


def encode_received(received: Received) -> pb.ServerMessage:
    return pb.ServerMessage(received=pb.Received(observation=received.observation, size=received.size))


def decode_received(message: pb.ServerMessage) -> Received:
    _expect(message, "received")
    return Received(message.received.observation, message.received.size)


def decode_server_message(message: pb.ServerMessage, policy: Policy | None = None) -> ServerMessage:
    """Any message from the server; until a Welcome has named the `policy`, only a Welcome or a Ping is in order."""
    kind = message.WhichOneof("body")
    if kind == "welcome":
        return decode_welcome(message)
    if kind == "pong":
        return Ping(message.pong.id)
    if policy is None:
        raise ProtocolError(f"stream: expected welcome, got {kind or 'nothing'}")
    if kind == "chunk":
        return decode_chunk(message, policy)
    if kind == "skipped":
        return decode_skipped(message)
    if kind == "failure":
        return decode_failure(message)
    if kind == "replaced":
        return decode_replaced(message)
    if kind == "pace":
        return decode_pace(message)
    if kind == "received":
        return decode_received(message)
    raise ProtocolError("stream: got a message of a kind that this version does not know")


# What both halves are made of.


def _expect(message: pb.ClientMessage | pb.ServerMessage, kind: str) -> None:
    got = message.WhichOneof("body")
    if got != kind:
        raise ProtocolError(f"stream: expected {kind}, got {got or 'nothing'}")


def _encode_policy(policy: Policy) -> pb.Policy:
    return pb.Policy(
        name=policy.name,
        type=policy.type,
        digest=policy.digest,
        joints=_encode_joints(policy.joints),
        cameras=_encode_cameras(policy.cameras),
        extra_state=_encode_extra_state(policy.extra_state),
        chunk_size=policy.chunk_size,
        fps=policy.fps,
        uses_task=policy.uses_task,
        temporal_ensemble_coeff=policy.temporal_ensemble_coeff,
        guided=policy.guided,
        trained_delay=policy.trained_delay,
    )


def _decode_policy(policy: pb.Policy) -> Policy:
    return Policy(
        name=limits.name("policy: name", policy.name),
        type=limits.name("policy: type", policy.type),
        digest=_decode_digest(policy.digest),
        joints=_decode_joints(policy.joints),
        cameras=_decode_cameras(policy.cameras),
        extra_state=_decode_extra_state(policy.extra_state),
        chunk_size=limits.whole("chunk_size", policy.chunk_size, 1, limits.CHUNK),
        fps=limits.number("fps", policy.fps),
        uses_task=policy.uses_task,
        temporal_ensemble_coeff=limits.number("temporal_ensemble_coeff", policy.temporal_ensemble_coeff, -math.inf),
        guided=policy.guided,
        trained_delay=limits.whole("policy: trained_delay", policy.trained_delay, 0, limits.CHUNK),
    )


def _encode_guidance(guidance: Guidance) -> pb.Guidance:
    return pb.Guidance(
        schedule=_SCHEDULE_NUMBERS[guidance.schedule],
        horizon=guidance.horizon,
        max_weight=guidance.max_weight,
        trained=guidance.trained,
    )


def _decode_guidance(guidance: pb.Guidance) -> Guidance:
    if guidance.schedule not in _SCHEDULES:
        raise ProtocolError(f"guidance: schedule {guidance.schedule} is not one of {limits.listing(_SCHEDULE_NUMBERS)}")
    return Guidance(
        schedule=_SCHEDULES[guidance.schedule],
        horizon=limits.whole("guidance: horizon", guidance.horizon, 0, limits.CHUNK),
        max_weight=limits.number("guidance: max_weight", guidance.max_weight),
        trained=guidance.trained,
    )


def _encode_joints(joints: Iterable[Joint]) -> list[pb.Joint]:
    return [pb.Joint(name=joint.name, unit=joint.unit) for joint in joints]


def _decode_joints(joints: Sequence[pb.Joint]) -> tuple[Joint, ...]:
    limits.whole("joints", len(joints), 1, limits.JOINTS)
    limits.distinct("joints", (joint.name for joint in joints))
    return tuple(Joint(limits.name("joint", joint.name), limits.text("unit", joint.unit)) for joint in joints)


def _encode_cameras(cameras: Iterable[Camera]) -> list[pb.Camera]:
    return [pb.Camera(name=camera.name, height=camera.height, width=camera.width) for camera in cameras]


def _decode_cameras(cameras: Sequence[pb.Camera]) -> tuple[Camera, ...]:
    limits.whole("cameras", len(cameras), 0, limits.CAMERAS)
    limits.distinct("cameras", (camera.name for camera in cameras))
    return tuple(
        Camera(
            limits.name("camera", camera.name),
            limits.whole("camera height", camera.height, 1, limits.SIDE),
            limits.whole("camera width", camera.width, 1, limits.SIDE),
        )
        for camera in cameras
    )


def _encode_extra_state(vectors: Iterable[ExtraState]) -> list[pb.NamedDimension]:
    return [pb.NamedDimension(name=vector.name, dimension=vector.dimension) for vector in vectors]


def _decode_extra_state(vectors: Sequence[pb.NamedDimension]) -> tuple[ExtraState, ...]:
    limits.whole("extra state", len(vectors), 0, limits.EXTRA_STATES)
    limits.distinct("extra state", (vector.name for vector in vectors))
    return tuple(
        ExtraState(
            limits.name("extra state", vector.name),
            limits.whole("extra state dimension", vector.dimension, 1, limits.DIMENSION),
        )
        for vector in vectors
    )


def _decode_understands(kinds: Sequence[str]) -> tuple[str, ...]:
    """Kinds that this version does not know are of no use, and no error."""
    limits.whole("understands", len(kinds), 0, limits.KINDS)
    return tuple(limits.text("understands", kind) for kind in kinds)


def _decode_digest(digest: bytes) -> bytes:
    limits.whole("digest: bytes", len(digest), limits.DIGEST, limits.DIGEST)
    return digest
