"""Every setting a user can give the robot's side, with its unit in its name; LeRobot's words where LeRobot has one."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from edge_runtime.errors import ConfigError
from edge_runtime.program.schema import (
    FOREVER_S,
    Choice,
    Port,
    Range,
    check_address,
    check_fields,
    check_file_name,
    hint,
)

StopPolicy = Literal["limp", "park", "hold"]
Mode = Literal["async", "sequential"]
Realtime = Literal["enforce", "try", "off"]
Part = Annotated[float, Range(0, 1)]
Quality = Annotated[int, Range(0, 100)]
Tolerance = Annotated[float, Range(0, 1_000_000)]
Levels = Annotated[float, Range(0.1, 255)]
Age = Annotated[float, Range(0.01, 3600)]
FollowingError = Literal["warn", "hold", "stop"]


def _each(limits: float | dict[str, float] | None) -> list[tuple[str, float | None]]:
    """By joint; the empty name stands for all of them."""
    return [*limits.items()] if isinstance(limits, dict) else [("", limits)]


PATIENCE_S = 0.3  # without a tick of the loop, beyond a period: then the supervisor stops the arm
LONGEST_BUS_TIMEOUT_MS = (
    PATIENCE_S * 1e3 / 3
)  # a tick waits so long for positions, again for a look at a servo's health


@dataclass
class CameraConfig(Choice):
    """A camera: what to open and the frames it must deliver."""

    width: Annotated[int, Range(1, 8192)] | None = None  # pixels; by default what it offers, as for height and fps
    height: Annotated[int, Range(1, 8192)] | None = None  # pixels
    fps: Annotated[int, Range(1, 1000)] | None = None  # frames per second
    may_stand_still: bool = False  # a test picture: the same one again, while the arm moves, is no sign of a fault


@CameraConfig.register_subclass("opencv")
@dataclass
class OpenCVCameraConfig(CameraConfig):
    """LeRobot's OpenCV camera: an index, a device path or a URL."""

    index_or_path: int | str = 0  # the number of a /dev/video, a path or a URL
    fourcc: str | None = None  # pixel format, such as MJPG; by default the driver's choice
    rotation: Literal[0, 90, 180, -90, 270] = 0  # degrees clockwise; width and height are those afterwards
    color_mode: Literal["rgb", "bgr"] = "rgb"  # order of the colours, as the policy was trained
    warmup_s: Annotated[float, Range(0, 60)] = 1.0  # within which the first frame must come

    def __post_init__(self) -> None:
        check_fields(self)
        if self.index_or_path == "" or (isinstance(self.index_or_path, int) and self.index_or_path < 0):
            raise ConfigError(
                f"index_or_path: {self.index_or_path!r} is not the number of a /dev/video, a path or a URL"
            )
        if self.fourcc is not None and len(self.fourcc) != 4:
            raise ConfigError(f"fourcc: {self.fourcc!r} is not four characters, such as MJPG")


@CameraConfig.register_subclass("synthetic")
@dataclass
class SyntheticCameraConfig(CameraConfig):
    """A camera that is not there: a moving picture with the detail and the noise of a real one."""

    width: Annotated[int, Range(1, 8192)] = 640
    height: Annotated[int, Range(1, 8192)] = 480
    fps: Annotated[int, Range(1, 1000)] = 30

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass
class RobotConfig(Choice):
    """A robot: its kind, its cameras and the limits every kind obeys."""

    id: str | None = None  # its calibration file is named for it
    cameras: dict[str, CameraConfig] = field(default_factory=dict)
    max_speed: Annotated[float, Range(0)] = 300.0  # joint units per second against the last goal; 0 = off
    max_acceleration: float | dict[str, float] = 8000.0  # units per s^2, to gain speed or turn back; 0 = off
    max_relative_target: float | dict[str, float] | None = None  # joint units against the present position
    clamp_range: bool = True  # keep goals inside the calibrated range
    max_missed_replies: Annotated[int, Range(1, 10_000)] = 15  # in a row from one joint, then the robot has failed
    following_error: FollowingError = "warn"  # a joint is far from its goal: say so, wait there, or end the run
    following_limit: float | dict[str, float] | None = None  # units that are far; by default 20, any for a gripper
    following_s: Annotated[float, Range(0, FOREVER_S)] = 1.0  # for so long
    stop_policy: StopPolicy = "limp"  # at the end: torque off, first to rest_pose and then off, or stay on
    reconnect: bool = True  # after a fault wait for the robot and start it again; false: exit 74

    def __post_init__(self) -> None:
        if self.id is not None:
            check_file_name(self.id, "robot.id", "my_arm")
        check_fields(self, "robot")
        for name in ("max_relative_target", "following_limit"):
            for joint, limit in _each(getattr(self, name)):
                if limit is not None and not 0 < limit < math.inf:
                    field_name = f"robot.{name}.{joint}".rstrip(".")
                    raise ConfigError(f"{field_name}: {limit:g} is not a distance in joint units, above 0")
        for joint, limit in _each(self.max_acceleration):
            if limit is None or not 0 <= limit < math.inf:
                field_name = f"robot.max_acceleration.{joint}".rstrip(".")
                raise ConfigError(f"{field_name}: {limit} is not an acceleration in joint units per s^2; 0 = off")


@dataclass
class SOFollowerConfig(RobotConfig):
    """An SO-100 or SO-101 follower arm: six STS3215 on one serial bus."""

    port: str = ""  # serial port of the arm, such as /dev/ttyACM0; better a name in /dev/serial/by-id
    calibration_dir: Path | None = None  # folder of the calibration file; by default LeRobot's
    use_degrees: bool = True  # joints in degrees; false: -100..100
    write_calibration: bool = False  # write the calibration file into servos that differ from it
    position_p_coefficient: Annotated[int, Range(0, 254)] = 16  # gain of the servos' own controllers
    position_i_coefficient: Annotated[int, Range(0, 254)] = 0  # likewise
    position_d_coefficient: Annotated[int, Range(0, 254)] = 32  # likewise
    rest_pose: dict[str, float] | None = None  # for park: joint -> units; by default the pose at start
    park_timeout_s: Annotated[float, Range(0.1, 60)] = 5.0  # for park: torque is off then, wherever the arm is
    max_temperature: int = 68  # degrees Celsius: the arm is stopped, before a servo at 70 lets go by itself; 0 = off
    bus_timeout_ms: float | None = None  # 0.1..100; by default the lesser of 10 ms and a third of the period
    echo: bool = False  # a bare UART hears its own bytes

    def __post_init__(self) -> None:
        super().__post_init__()
        wait_ms = self.bus_timeout_ms
        if wait_ms is not None and not 0.1 <= wait_ms <= LONGEST_BUS_TIMEOUT_MS:
            raise ConfigError(
                f"robot.bus_timeout_ms: {wait_ms:g} is not in 0.1..{LONGEST_BUS_TIMEOUT_MS:g}: a tick may wait twice as"
                f" long, and after {PATIENCE_S * 1e3:g} ms without one the supervisor stops the arm"
            )
        if self.max_temperature != 0 and not 30 <= self.max_temperature <= 100:
            raise ConfigError(f"robot.max_temperature: {self.max_temperature} is not in 30..100 °C, nor 0 for off")


@RobotConfig.register_subclass("so101_follower")
@dataclass
class SO101FollowerConfig(SOFollowerConfig):
    """An SO-101 follower arm."""


@RobotConfig.register_subclass("so100_follower")
@dataclass
class SO100FollowerConfig(SOFollowerConfig):
    """An SO-100 follower arm."""


@dataclass
class TlsConfig:
    """TLS to the policy server, on as soon as there is a `ca`. All files are PEM, read at each connection."""

    ca: Path | None = None  # who signed the server's certificate
    cert: Path | None = None  # this robot's certificate, where the server wants one
    key: Path | None = None  # its private key, which the world may not read
    server_name: str = ""  # in the server's certificate, where that is not the host of server_address

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ConfigError(f"tls.{'cert' if self.cert is None else 'key'}: is missing; cert and key belong together")
        for name in ("cert", "server_name"):
            if self.ca is None and getattr(self, name):
                raise ConfigError(f"tls.ca: is missing, and tls.{name} needs it: without it there is no TLS")


@dataclass
class RtcConfig:
    """Real-time chunking: each chunk continues what is planned (arXiv 2506.07339). The names are LeRobot's."""

    enabled: bool | Literal["auto"] = "auto"  # auto = where the policy can be guided
    prefix_attention_schedule: Literal["zeros", "ones", "linear", "exp"] = "linear"  # how the plan is held
    execution_horizon: Annotated[int, Range(0, 4096)] = 0  # rows of the plan that are held; 0 = all that are left
    max_guidance_weight: Annotated[float, Range(0, 1000)] = 10.0  # of the pull in a denoising step


@RobotConfig.register_subclass("none")
@dataclass
class NoRobotConfig(RobotConfig):
    """No robot: joints that are wherever they were sent. For the profiler, and to try out a server."""

    joints: dict[str, str] = field(default_factory=dict)  # name -> unit; the profiler takes the policy's


@dataclass
class StartConfig:
    """`edge-runtime start`: run a policy on a robot until a signal, the last episode or `duration_s`."""

    ESSENTIALS: ClassVar[tuple[str, ...]] = (
        *("robot.type", "robot.port", "robot.id"),
        *(f"robot.cameras.NAME.{name}" for name in ("type", "index_or_path", "width", "height", "fps")),
        *("server_address", "bundle", "task", "fps"),
    )

    robot: RobotConfig
    server_address: str = "127.0.0.1:8080"  # HOST:PORT or unix:/path
    bundle: Path | None = None  # one machine: start a server of our own for this bundle or LeRobot checkpoint
    model: str = ""  # which of the server's policies; empty = its first
    task: str = ""  # what to do, in words, for a policy that listens
    task_file: Path | None = None  # its first line is the task, and may change while the robot works
    fps: Annotated[float, Range(1, 1000)] = 30.0  # actions per second, as the policy was trained
    control_hz: Annotated[float, Range(1, 2000)] | None = None  # of the loop: k * fps, k whole; by default fps
    mode: Mode = "async"  # sequential stands still until each chunk has come, to compare
    actions_per_chunk: Annotated[int, Range(1, 4096)] | None = None  # by default all of a chunk; sequential: half of it
    chunk_size_threshold: Part | Literal["auto"] = "auto"  # ask when the queue holds at most this part of a chunk
    starve_risk: Annotated[float, Range(1e-4, 0.5)] = 0.01  # auto: chance that the queue runs dry before a chunk comes
    auto_floor: Part = 0.5  # auto: ask at this part of a chunk at the latest, unless the server is overloaded
    aggregate_fn_name: str | None = None  # a name or module:function; by default linear_blend, or as it was trained
    rtc: RtcConfig = field(default_factory=RtcConfig)
    similarity: Literal["joint", "joint+image"] = "joint"  # what the server compares to skip what adds nothing
    similarity_tolerance: Tolerance | None = None  # L2 in joint units; by default 1.0 for degrees, else off; 0 = off
    image_tolerance: Levels = 15.0  # joint+image: levels (of 255) in a cell of a picture of 24 x 24
    jpeg_quality: Quality | Literal["auto"] = "auto"  # auto = 93, down to 60 on a slow line; 0 = raw frames
    resize: bool = False  # resize frames here to the shape the policy takes
    rename_map: dict[str, str] = field(default_factory=dict)  # robot's camera -> policy's camera
    extra_state: dict[str, str] = field(default_factory=dict)  # environment_state -> URL of JSON, or constant:1,2,3
    max_frame_age_s: Age = 0.5  # what is older is not sent
    max_joint_age_s: Age = 0.25  # a position that is older is not sent
    max_action_age_s: Age | None = None  # from observation to execution; by default that of a chunk and 1 s
    episodes: Annotated[int, Range(0)] = 0  # 0 = one run without resets
    reset_url: str = ""  # who places the scene and judges: POST {"seed": n}, GET
    first_seed: Annotated[int, Range(0)] = 0  # of the episodes
    duration_s: Annotated[float, Range(0, FOREVER_S)] = 0.0  # 0 = until a signal
    dry_run: bool = False  # no torque; prints goals
    realtime: Realtime = "try"  # for the loop; enforce fails where it may not be had
    priority: Annotated[int, Range(1, 99)] = 80  # of SCHED_FIFO
    cpu_affinity: list[int] = field(default_factory=list)  # the processors of the loop; empty = any
    fault_folder: Path | None = None  # where the ticks before a fault go; by default ~/.local/state/edge-runtime
    give_up_after_s: Annotated[float, Range(0, FOREVER_S)] = 30.0  # without a server; 0 = never
    summary: Path | None = None  # JSON, written at the end
    metrics_port: Port | None = None  # Prometheus, on 127.0.0.1 only; 0 = any
    status: bool = True  # a line that shows how it goes, where stderr is a terminal
    queue_log: Path | None = None  # CSV of time, episode and queue level, for plots
    tls: TlsConfig = field(default_factory=TlsConfig)
    token_file: Path | None = None  # a bearer token for the server; only its owner may read it
    insecure: bool = False  # a server beyond loopback without TLS
    debug: bool = False  # tracebacks, debug log

    def __post_init__(self) -> None:
        check_fields(self)
        if self.control_hz is not None and abs(self.control_hz / self.fps - self.substeps) > 1e-9:
            raise ConfigError(f"control_hz: {self.control_hz:g} is not a whole multiple of fps {self.fps:g}")
        self._check_together()

    def _check_together(self) -> None:
        """What is right by itself may not go with the rest."""
        if self.episodes and not self.reset_url:
            raise ConfigError("episodes: needs reset_url, which places the scene for each episode")
        if self.reset_url:
            check_address(self.reset_url, "reset_url")
        if self.bundle is not None and self.server_address != StartConfig.server_address:
            raise ConfigError("server_address: bundle is given too, and starts a server of its own; leave one out")
        if self.task and self.task_file is not None:
            raise ConfigError("task_file: task is given too; the robot is told one or the other")
        for name in self.rename_map if self.robot.cameras else ():
            if name not in self.robot.cameras:
                raise ConfigError(f"rename_map.{name}: the robot has no such camera; {hint(name, self.robot.cameras)}")
        taken: dict[str, str] = {}
        for name in self.robot.cameras:
            theirs = self.rename_map.get(name, name)
            if theirs in taken:
                raise ConfigError(f"rename_map: {taken[theirs]} and {name} would both be {theirs}")
            taken[theirs] = name

    @property
    def substeps(self) -> int:
        """Ticks for each timestep: k in control_hz = k * fps."""
        return round((self.control_hz or self.fps) / self.fps)
