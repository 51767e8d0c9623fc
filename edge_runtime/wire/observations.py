"""An observation on its way: a header, then its frames in pieces; and how a server puts the pieces together."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from edge_runtime.errors import ProtocolError
from edge_runtime.wire import limits
from edge_runtime.wire import policy_pb2 as pb
from edge_runtime.wire.frames import JPEG_OVERHEAD, compress
from edge_runtime.wire.messages import Encoding, Frame, Observation, Policy

_ENCODINGS: dict[pb.Encoding, Encoding] = {pb.RAW: "raw", pb.JPEG: "jpeg"}
_ENCODING_NUMBERS = {name: number for number, name in _ENCODINGS.items()}


def encode_observation(
    observation: Observation, jpeg_quality: int = 0, piece: int = limits.PIECE
) -> list[pb.ClientMessage]:
    """The messages of one observation: its header, then each frame in pieces of at most `piece` bytes.

    Raw frames are compressed when `jpeg_quality` is not 0.
    """
    frames = [compress(frame, jpeg_quality) if jpeg_quality else frame for frame in observation.frames]
    header = pb.ObservationHeader(
        id=observation.id,
        session=observation.session,
        timestep=observation.timestep,
        must_go=observation.must_go,
        state=observation.state.tolist(),
        extra_state={name: pb.Vector(values=vector.tolist()) for name, vector in observation.extra_state.items()},
        task=observation.task,
        runs_dry_in_s=observation.runs_dry_in_s,
        delay=observation.delay,
        plan=None if observation.plan is None else observation.plan.ravel().tolist(),
        frames=[
            pb.FrameHeader(
                camera=frame.camera,
                encoding=_ENCODING_NUMBERS[frame.encoding],
                height=frame.height,
                width=frame.width,
                size=len(frame.data),
            )
            for frame in frames
        ],
    )
    messages = [pb.ClientMessage(observation=header)]
    for index, frame in enumerate(frames):
        for offset in range(0, len(frame.data), piece):
            data = bytes(frame.data[offset : offset + piece])
            part = pb.FramePiece(observation=observation.id, frame=index, offset=offset, data=data)
            messages.append(pb.ClientMessage(piece=part))
    return messages


@dataclass
class _Arriving:
    """A frame of which `received` bytes are here; one that comes in a single piece is never copied."""

    header: pb.FrameHeader
    received: int = 0
    data: bytes | bytearray = b""

    @property
    def whole(self) -> bool:
        return self.received == self.header.size

    def append(self, piece: bytes) -> None:
        if len(piece) == self.header.size:
            self.data = piece
        else:
            if not self.received:
                self.data = bytearray(self.header.size)
            assert isinstance(self.data, bytearray)
            self.data[self.received : self.received + len(piece)] = piece
        self.received += len(piece)

    def frame(self) -> Frame:
        header = self.header
        return Frame(header.camera, header.height, header.width, _ENCODINGS[header.encoding], memoryview(self.data))


@dataclass
class _Unfinished:
    header: pb.ObservationHeader
    since: float
    frames: list[_Arriving]
    current: int = 0


class ObservationAssembler:
    """Puts the pieces of one stream's observations together, trusting none of them.

    What may come is what the policy takes: its joints, each of its cameras once in its shape, its extra state. The
    header is held against that before anything is allocated; pieces must follow one another without gap or overlap.
    Every violation is a ProtocolError, after which the stream is to be ended.
    """

    def __init__(
        self, policy: Policy, *, most_bytes: int = 1 << 32, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._policy = policy
        self._most_bytes = most_bytes  # of all frames of one observation
        self._cameras = {camera.name: camera for camera in policy.cameras}
        self._extra_state = {vector.name: vector.dimension for vector in policy.extra_state}
        self._clock = clock
        self._last_id = -1
        self._last_session = 0
        self._unfinished: _Unfinished | None = None

    @property
    def unfinished(self) -> int | None:
        """The observation that is under way."""
        return self._unfinished.header.id if self._unfinished else None

    def feed(self, message: pb.ClientMessage) -> tuple[Observation, float] | None:
        """Take a header or a piece: the observation and the seconds it took to arrive, once it is whole."""
        kind = message.WhichOneof("body")
        if kind == "observation":
            self._begin(message.observation)
        elif kind == "piece":
            self._append(message.piece)
        else:
            raise ProtocolError(f"stream: expected an observation or a piece of one, got {kind or 'nothing'}")
        return self._finish()

    def _begin(self, header: pb.ObservationHeader) -> None:
        if self._unfinished:
            raise ProtocolError(f"observation {header.id}: {self._unfinished.header.id} before it is unfinished")
        if header.id <= self._last_id:
            raise ProtocolError(f"observation {header.id}: does not come after {self._last_id}")
        if header.session < self._last_session:
            raise ProtocolError(f"session {header.session}: does not come after {self._last_session}")
        self._check(header)
        self._last_id, self._last_session = header.id, header.session
        self._unfinished = _Unfinished(header, self._clock(), [_Arriving(frame) for frame in header.frames])

    def _check(self, header: pb.ObservationHeader) -> None:
        limits.whole("timestep", header.timestep, 0, limits.TIMESTEP)
        limits.number("runs_dry_in_s", header.runs_dry_in_s)
        if len(header.task) > limits.TASK:
            raise ProtocolError(f"task: {len(header.task)} characters are more than {limits.TASK}")
        _check_vector("state", header.state, len(self._policy.joints))
        rows, rest = divmod(len(header.plan), len(self._policy.joints))
        if rest:
            raise ProtocolError(f"plan: {len(header.plan)} numbers are not rows of {len(self._policy.joints)} joints")
        limits.whole("plan: rows", rows, 0, self._policy.chunk_size)
        limits.whole("delay", header.delay, 0, limits.CHUNK)
        if header.extra_state.keys() != self._extra_state.keys():
            raise ProtocolError(
                f"extra state: got {limits.listing(header.extra_state)}, expected {limits.listing(self._extra_state)}"
            )
        for name, dimension in self._extra_state.items():
            _check_vector(name, header.extra_state[name].values, dimension)
        if len(header.frames) != len(self._cameras):
            raise ProtocolError(f"frames: got {len(header.frames)}, expected {limits.listing(self._cameras)}")
        limits.distinct("frames", (frame.camera for frame in header.frames))
        for frame in header.frames:
            self._check_frame(frame)
        limits.whole("frames: bytes", sum(frame.size for frame in header.frames), 0, self._most_bytes)

    def _check_frame(self, frame: pb.FrameHeader) -> None:
        camera = self._cameras.get(frame.camera)
        if camera is None:
            raise ProtocolError(f"frame {frame.camera[:40]!r}: expected one of {limits.listing(self._cameras)}")
        what = f"frame {camera.name}"
        if (frame.height, frame.width) != (camera.height, camera.width):
            raise ProtocolError(
                f"{what}: is {frame.width}x{frame.height}, the policy takes {camera.width}x{camera.height}"
            )
        raw = camera.height * camera.width * 3
        if frame.encoding == pb.RAW:
            limits.whole(f"{what}: size", frame.size, raw, raw)
        elif frame.encoding == pb.JPEG:
            limits.whole(f"{what}: size", frame.size, 1, raw + JPEG_OVERHEAD)
        else:
            raise ProtocolError(f"{what}: encoding {frame.encoding} is neither raw nor jpeg")

    def _append(self, piece: pb.FramePiece) -> None:
        unfinished = self._unfinished
        if unfinished is None or piece.observation != unfinished.header.id:
            raise ProtocolError(f"piece of observation {piece.observation}: its header did not come before it")
        if piece.frame != unfinished.current:
            raise ProtocolError(f"piece of frame {piece.frame}: expected frame {unfinished.current}")
        arriving = unfinished.frames[unfinished.current]
        if piece.offset != arriving.received:
            raise ProtocolError(f"piece of frame {piece.frame}: offset {piece.offset}, expected {arriving.received}")
        rest = arriving.header.size - arriving.received
        limits.whole(f"piece of frame {piece.frame}: size", len(piece.data), 1, min(rest, limits.PIECE))
        arriving.append(piece.data)
        unfinished.current += arriving.whole

    def _finish(self) -> tuple[Observation, float] | None:
        done = self._unfinished
        if done is None or done.current < len(done.frames):
            return None
        self._unfinished = None
        header = done.header
        observation = Observation(
            id=header.id,
            session=header.session,
            timestep=header.timestep,
            must_go=header.must_go,
            state=np.array(header.state, np.float32),
            extra_state={name: np.array(v.values, np.float32) for name, v in header.extra_state.items()},
            frames=tuple(arriving.frame() for arriving in done.frames),
            task=header.task,
            runs_dry_in_s=header.runs_dry_in_s,
            delay=header.delay,
            plan=np.array(header.plan, np.float32).reshape(-1, len(self._policy.joints)) if header.plan else None,
        )
        return observation, self._clock() - done.since


def _check_vector(what: str, values: Sequence[float], dimension: int) -> None:
    if len(values) != dimension:
        raise ProtocolError(f"{what}: {len(values)} numbers, expected {dimension}")
    for index, value in enumerate(values):
        if not math.isfinite(value):  # asked here already: a sentence for each number would cost more than the rest
            limits.number(f"{what}: number {index}", value, -math.inf)
