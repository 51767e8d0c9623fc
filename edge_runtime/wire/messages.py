"""What travels between robot and server: frozen dataclasses over numpy; those with arrays equal only themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt

from edge_runtime.program.schema import Printable, Range
from edge_runtime.wire import limits

PROTOCOL_VERSION = 1
RECEIVED = "received"  # in `understands`
Floats = npt.NDArray[np.float32]
Pixels = npt.NDArray[np.uint8]
Encoding = Literal["raw", "jpeg"]
SkipReason = Literal["similar", "already_predicted", "superseded"]
Schedule = Literal["zeros", "ones", "linear", "exp"]
Name = Annotated[str, Printable(limits.NAME)]


@dataclass(frozen=True)
class Joint:
    """A joint's feature key (`shoulder_pan.pos`) and its unit (`degrees`, `normalized`, `percent`, `radians`, …)."""

    name: Name
    unit: Name


@dataclass(frozen=True)
class Camera:
    """A camera by the policy's name; its frames are (height, width, 3) uint8 RGB."""

    name: Name
    height: Annotated[int, Range(1, limits.SIDE)]
    width: Annotated[int, Range(1, limits.SIDE)]


@dataclass(frozen=True)
class ExtraState:
    """A named vector that is not joints, such as `observation.environment_state`."""

    name: Name
    dimension: Annotated[int, Range(1, limits.DIMENSION)]


@dataclass(frozen=True)
class Policy:
    """What a server offers: all that both sides must agree on before torque is on."""

    name: str
    type: str
    digest: bytes
    joints: tuple[Joint, ...]
    cameras: tuple[Camera, ...]
    extra_state: tuple[ExtraState, ...]
    chunk_size: int
    fps: float
    uses_task: bool = False
    temporal_ensemble_coeff: float = 0.0
    guided: bool = False
    trained_delay: int = 0


@dataclass(frozen=True)
class Guidance:
    """How chunks continue the plan (real-time chunking, arXiv 2506.07339), in LeRobot's words.

    `horizon` is how many rows of the plan are held, 0 = all that came; `max_weight` bounds the pull of a denoising
    step. `trained`: rows before the delay are given clean, where the policy was trained so.
    """

    schedule: Schedule = "linear"
    horizon: int = 0
    max_weight: float = 10.0
    trained: bool = False


@dataclass(frozen=True)
class ServerDescription:
    protocol_version: int
    server_version: str
    policies: tuple[Policy, ...]


@dataclass(frozen=True)
class Hello:
    """What a robot is, in the policy's names: the first message of a stream."""

    joints: tuple[Joint, ...]
    cameras: tuple[Camera, ...]
    extra_state: tuple[ExtraState, ...]
    fps: float
    model: str = ""
    actions_per_chunk: int = 0
    similarity_tolerance: float = 0.0
    robot: str = ""
    digest: bytes = b""
    image_tolerance: float = 0.0
    guidance: Guidance | None = None
    protocol_version: int = PROTOCOL_VERSION
    understands: tuple[str, ...] = ()  # kinds of later messages that it may be sent


@dataclass(frozen=True)
class Welcome:
    """The answer to Hello: the policy that will run, and which of what the robot understands it will be sent."""

    policy: Policy
    understands: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Frame:
    """One camera's picture: raw RGB bytes or a JPEG, with the shape it has once decoded."""

    camera: str
    height: int
    width: int
    encoding: Encoding
    data: bytes | memoryview

    @classmethod
    def raw(cls, camera: str, pixels: Pixels) -> Frame:
        """A frame over (height, width, 3) uint8 RGB pixels, not copied when contiguous."""
        pixels = np.ascontiguousarray(pixels)
        return cls(camera, pixels.shape[0], pixels.shape[1], "raw", pixels.data.cast("B"))


@dataclass(frozen=True, eq=False)
class Observation:
    """What the robot saw: row i of the chunk that answers it is for `timestep` + i.

    `state` is (joints,) float32 in Hello's order and units; `extra_state` name -> vector; `runs_dry_in_s` the time
    until the ring has no row left. `plan` is (rows, joints) float32 in joint units, what is planned from `timestep` on,
    of which `delay` rows will have been executed when the chunk arrives; None = the chunk is not guided.
    """

    id: int
    session: int
    timestep: int
    must_go: bool
    state: Floats
    extra_state: dict[str, Floats] = field(default_factory=dict)
    frames: tuple[Frame, ...] = ()
    task: str = ""
    runs_dry_in_s: float = 0.0
    delay: int = 0
    plan: Floats | None = None


@dataclass(frozen=True)
class ServerTimes:
    """Durations in seconds by the server's monotonic clock; the names are `timing.SERVER_STAGES`."""

    receive: float = 0.0
    admit: float = 0.0
    wait: float = 0.0
    prepare: float = 0.0
    infer: float = 0.0
    inject: float = 0.0
    finish: float = 0.0


@dataclass(frozen=True, eq=False)
class Chunk:
    """`actions` (rows, joints) float32 in joint units, row i for `first_timestep` + i."""

    observation: int
    session: int
    first_timestep: int
    actions: Floats
    digest: bytes
    times: ServerTimes = field(default_factory=ServerTimes)
    batch: int = 1


@dataclass(frozen=True)
class Skipped:
    """The observation was not run, and why."""

    observation: int
    reason: SkipReason


@dataclass(frozen=True)
class Failure:
    """The inference of one observation failed: a gRPC code, a sentence, and an id that both logs show."""

    observation: int
    code: int
    message: str
    error_id: str


@dataclass(frozen=True)
class Ping:
    """Sent empty, answered empty, on the same stream: the network's own time."""

    id: int


@dataclass(frozen=True)
class Replaced:
    """Another bundle took over within the stream: the chunks that follow come from `policy`."""

    policy: Policy


@dataclass(frozen=True)
class Pace:
    """The server is asked for more than it can carry: this robot gets a chunk every `interval_s`; 0 = no longer."""

    interval_s: float


@dataclass(frozen=True)
class Received:
    """Of the frames of an observation, `size` bytes have arrived."""

    observation: int
    size: int


Answer = Chunk | Skipped | Failure
ServerMessage = Welcome | Answer | Ping | Replaced | Pace | Received
