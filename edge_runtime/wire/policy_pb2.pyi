from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Schedule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ZEROS: _ClassVar[Schedule]
    ONES: _ClassVar[Schedule]
    LINEAR: _ClassVar[Schedule]
    EXP: _ClassVar[Schedule]

class Encoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RAW: _ClassVar[Encoding]
    JPEG: _ClassVar[Encoding]

class SkipReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SIMILAR: _ClassVar[SkipReason]
    ALREADY_PREDICTED: _ClassVar[SkipReason]
    SUPERSEDED: _ClassVar[SkipReason]
ZEROS: Schedule
ONES: Schedule
LINEAR: Schedule
EXP: Schedule
RAW: Encoding
JPEG: Encoding
SIMILAR: SkipReason
ALREADY_PREDICTED: SkipReason
SUPERSEDED: SkipReason

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ServerDescription(_message.Message):
    __slots__ = ("protocol_version", "server_version", "policies")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    server_version: str
    policies: _containers.RepeatedCompositeFieldContainer[Policy]
    def __init__(self, protocol_version: _Optional[int] = ..., server_version: _Optional[str] = ..., policies: _Optional[_Iterable[_Union[Policy, _Mapping]]] = ...) -> None: ...

class Joint(_message.Message):
    __slots__ = ("name", "unit")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    name: str
    unit: str
    def __init__(self, name: _Optional[str] = ..., unit: _Optional[str] = ...) -> None: ...

class Camera(_message.Message):
    __slots__ = ("name", "height", "width")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    name: str
    height: int
    width: int
    def __init__(self, name: _Optional[str] = ..., height: _Optional[int] = ..., width: _Optional[int] = ...) -> None: ...

class NamedDimension(_message.Message):
    __slots__ = ("name", "dimension")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIMENSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    dimension: int
    def __init__(self, name: _Optional[str] = ..., dimension: _Optional[int] = ...) -> None: ...

class Policy(_message.Message):
    __slots__ = ("name", "type", "digest", "joints", "cameras", "extra_state", "chunk_size", "fps", "uses_task", "temporal_ensemble_coeff", "guided", "trained_delay")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    JOINTS_FIELD_NUMBER: _ClassVar[int]
    CAMERAS_FIELD_NUMBER: _ClassVar[int]
    EXTRA_STATE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_SIZE_FIELD_NUMBER: _ClassVar[int]
    FPS_FIELD_NUMBER: _ClassVar[int]
    USES_TASK_FIELD_NUMBER: _ClassVar[int]
    TEMPORAL_ENSEMBLE_COEFF_FIELD_NUMBER: _ClassVar[int]
    GUIDED_FIELD_NUMBER: _ClassVar[int]
    TRAINED_DELAY_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: str
    digest: bytes
    joints: _containers.RepeatedCompositeFieldContainer[Joint]
    cameras: _containers.RepeatedCompositeFieldContainer[Camera]
    extra_state: _containers.RepeatedCompositeFieldContainer[NamedDimension]
    chunk_size: int
    fps: float
    uses_task: bool
    temporal_ensemble_coeff: float
    guided: bool
    trained_delay: int
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ..., digest: _Optional[bytes] = ..., joints: _Optional[_Iterable[_Union[Joint, _Mapping]]] = ..., cameras: _Optional[_Iterable[_Union[Camera, _Mapping]]] = ..., extra_state: _Optional[_Iterable[_Union[NamedDimension, _Mapping]]] = ..., chunk_size: _Optional[int] = ..., fps: _Optional[float] = ..., uses_task: bool = ..., temporal_ensemble_coeff: _Optional[float] = ..., guided: bool = ..., trained_delay: _Optional[int] = ...) -> None: ...

class Guidance(_message.Message):
    __slots__ = ("schedule", "horizon", "max_weight", "trained")
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    HORIZON_FIELD_NUMBER: _ClassVar[int]
    MAX_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    schedule: Schedule
    horizon: int
    max_weight: float
    trained: bool
    def __init__(self, schedule: _Optional[_Union[Schedule, str]] = ..., horizon: _Optional[int] = ..., max_weight: _Optional[float] = ..., trained: bool = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol_version", "model", "joints", "cameras", "extra_state", "fps", "actions_per_chunk", "similarity_tolerance", "robot", "digest", "image_tolerance", "understands", "guidance")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    JOINTS_FIELD_NUMBER: _ClassVar[int]
    CAMERAS_FIELD_NUMBER: _ClassVar[int]
    EXTRA_STATE_FIELD_NUMBER: _ClassVar[int]
    FPS_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_PER_CHUNK_FIELD_NUMBER: _ClassVar[int]
    SIMILARITY_TOLERANCE_FIELD_NUMBER: _ClassVar[int]
    ROBOT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    IMAGE_TOLERANCE_FIELD_NUMBER: _ClassVar[int]
    UNDERSTANDS_FIELD_NUMBER: _ClassVar[int]
    GUIDANCE_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    model: str
    joints: _containers.RepeatedCompositeFieldContainer[Joint]
    cameras: _containers.RepeatedCompositeFieldContainer[Camera]
    extra_state: _containers.RepeatedCompositeFieldContainer[NamedDimension]
    fps: float
    actions_per_chunk: int
    similarity_tolerance: float
    robot: str
    digest: bytes
    image_tolerance: float
    understands: _containers.RepeatedScalarFieldContainer[str]
    guidance: Guidance
    def __init__(self, protocol_version: _Optional[int] = ..., model: _Optional[str] = ..., joints: _Optional[_Iterable[_Union[Joint, _Mapping]]] = ..., cameras: _Optional[_Iterable[_Union[Camera, _Mapping]]] = ..., extra_state: _Optional[_Iterable[_Union[NamedDimension, _Mapping]]] = ..., fps: _Optional[float] = ..., actions_per_chunk: _Optional[int] = ..., similarity_tolerance: _Optional[float] = ..., robot: _Optional[str] = ..., digest: _Optional[bytes] = ..., image_tolerance: _Optional[float] = ..., understands: _Optional[_Iterable[str]] = ..., guidance: _Optional[_Union[Guidance, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("policy", "understands")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    UNDERSTANDS_FIELD_NUMBER: _ClassVar[int]
    policy: Policy
    understands: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, policy: _Optional[_Union[Policy, _Mapping]] = ..., understands: _Optional[_Iterable[str]] = ...) -> None: ...

class FrameHeader(_message.Message):
    __slots__ = ("camera", "encoding", "height", "width", "size")
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    camera: str
    encoding: Encoding
    height: int
    width: int
    size: int
    def __init__(self, camera: _Optional[str] = ..., encoding: _Optional[_Union[Encoding, str]] = ..., height: _Optional[int] = ..., width: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class ObservationHeader(_message.Message):
    __slots__ = ("id", "session", "timestep", "must_go", "state", "extra_state", "task", "runs_dry_in_s", "frames", "delay", "plan")
    class ExtraStateEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Vector
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Vector, _Mapping]] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TIMESTEP_FIELD_NUMBER: _ClassVar[int]
    MUST_GO_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EXTRA_STATE_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    RUNS_DRY_IN_S_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    DELAY_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    id: int
    session: int
    timestep: int
    must_go: bool
    state: _containers.RepeatedScalarFieldContainer[float]
    extra_state: _containers.MessageMap[str, Vector]
    task: str
    runs_dry_in_s: float
    frames: _containers.RepeatedCompositeFieldContainer[FrameHeader]
    delay: int
    plan: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, id: _Optional[int] = ..., session: _Optional[int] = ..., timestep: _Optional[int] = ..., must_go: bool = ..., state: _Optional[_Iterable[float]] = ..., extra_state: _Optional[_Mapping[str, Vector]] = ..., task: _Optional[str] = ..., runs_dry_in_s: _Optional[float] = ..., frames: _Optional[_Iterable[_Union[FrameHeader, _Mapping]]] = ..., delay: _Optional[int] = ..., plan: _Optional[_Iterable[float]] = ...) -> None: ...

class Vector(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...

class FramePiece(_message.Message):
    __slots__ = ("observation", "frame", "offset", "data")
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    observation: int
    frame: int
    offset: int
    data: bytes
    def __init__(self, observation: _Optional[int] = ..., frame: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class ClientMessage(_message.Message):
    __slots__ = ("hello", "observation", "piece", "ping")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    observation: ObservationHeader
    piece: FramePiece
    ping: Ping
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., observation: _Optional[_Union[ObservationHeader, _Mapping]] = ..., piece: _Optional[_Union[FramePiece, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ...) -> None: ...

class ServerTimes(_message.Message):
    __slots__ = ("receive", "admit", "wait", "prepare", "infer", "inject", "finish")
    RECEIVE_FIELD_NUMBER: _ClassVar[int]
    ADMIT_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    INFER_FIELD_NUMBER: _ClassVar[int]
    INJECT_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    receive: float
    admit: float
    wait: float
    prepare: float
    infer: float
    inject: float
    finish: float
    def __init__(self, receive: _Optional[float] = ..., admit: _Optional[float] = ..., wait: _Optional[float] = ..., prepare: _Optional[float] = ..., infer: _Optional[float] = ..., inject: _Optional[float] = ..., finish: _Optional[float] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("observation", "session", "first_timestep", "joints", "actions", "digest", "times", "batch")
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    FIRST_TIMESTEP_FIELD_NUMBER: _ClassVar[int]
    JOINTS_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    observation: int
    session: int
    first_timestep: int
    joints: int
    actions: _containers.RepeatedScalarFieldContainer[float]
    digest: bytes
    times: ServerTimes
    batch: int
    def __init__(self, observation: _Optional[int] = ..., session: _Optional[int] = ..., first_timestep: _Optional[int] = ..., joints: _Optional[int] = ..., actions: _Optional[_Iterable[float]] = ..., digest: _Optional[bytes] = ..., times: _Optional[_Union[ServerTimes, _Mapping]] = ..., batch: _Optional[int] = ...) -> None: ...

class Skipped(_message.Message):
    __slots__ = ("observation", "reason")
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    observation: int
    reason: SkipReason
    def __init__(self, observation: _Optional[int] = ..., reason: _Optional[_Union[SkipReason, str]] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("observation", "code", "message", "error_id")
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ERROR_ID_FIELD_NUMBER: _ClassVar[int]
    observation: int
    code: int
    message: str
    error_id: str
    def __init__(self, observation: _Optional[int] = ..., code: _Optional[int] = ..., message: _Optional[str] = ..., error_id: _Optional[str] = ...) -> None: ...

class Replaced(_message.Message):
    __slots__ = ("policy",)
    POLICY_FIELD_NUMBER: _ClassVar[int]
    policy: Policy
    def __init__(self, policy: _Optional[_Union[Policy, _Mapping]] = ...) -> None: ...

class Pace(_message.Message):
    __slots__ = ("interval_s",)
    INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    interval_s: float
    def __init__(self, interval_s: _Optional[float] = ...) -> None: ...

class Received(_message.Message):
    __slots__ = ("observation", "size")
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    observation: int
    size: int
    def __init__(self, observation: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class ServerMessage(_message.Message):
    __slots__ = ("welcome", "chunk", "skipped", "failure", "pong", "replaced", "pace", "received")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    REPLACED_FIELD_NUMBER: _ClassVar[int]
    PACE_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    chunk: Chunk
    skipped: Skipped
    failure: Failure
    pong: Ping
    replaced: Replaced
    pace: Pace
    received: Received
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., skipped: _Optional[_Union[Skipped, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., pong: _Optional[_Union[Ping, _Mapping]] = ..., replaced: _Optional[_Union[Replaced, _Mapping]] = ..., pace: _Optional[_Union[Pace, _Mapping]] = ..., received: _Optional[_Union[Received, _Mapping]] = ...) -> None: ...
