"""Every setting of the policy server, with its unit in its name."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from edge_runtime.errors import ConfigError
from edge_runtime.program.schema import Milliseconds, Port, Range, check_fields
from policy_server.engines.cache import DEFAULT as DEFAULT_CACHE
from policy_server.engines.openpi.config import OpenpiConfig
from policy_server.engines.options import check as check_options
from policy_server.engines.providers import CONFIGURABLE, Providers, wants_accelerator
from policy_server.engines.stated import StatedRobot

Rate = Annotated[float, Range(0, 1_000_000)]
Patience = Annotated[float, Range(0.1, 3600)]


@dataclass
class TlsConfig:
    """TLS, on as soon as there is a certificate. All files are PEM, read again on SIGHUP."""

    cert: Path | None = None  # the server's certificate, which names the host that robots connect to
    key: Path | None = None  # its private key, which the world may not read
    client_ca: Path | None = None  # robots must show a certificate signed by this one

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ConfigError(f"tls.{'cert' if self.cert is None else 'key'}: is missing; cert and key belong together")
        if self.client_ca is not None and self.cert is None:
            raise ConfigError("tls.cert: is missing, and tls.client_ca needs it")


@dataclass
class LimitsConfig:
    """What a peer may take at most. A peer that takes more is refused or ended, with a status that says so."""

    message_bytes: Annotated[int, Range(1 << 16, 1 << 30)] = 4 << 20  # of one message; frames come in pieces of 1 MiB
    observation_bytes: Annotated[int, Range(1 << 10, 1 << 32)] = 64 << 20  # the frames of one observation together
    image_side: Annotated[int, Range(1, 8192)] = 8192  # pixels of a frame's height or width, which are the policy's
    connections: Annotated[int, Range(1, 1 << 16)] = 128  # at once; those beyond are closed when they come
    sessions_per_peer: Annotated[int, Range(0, 1024)] = 8  # of one address (IPv6: /64), this machine is free; 0 = all
    observations_per_second: Rate = 500.0  # of one session, pings included, and as many at once; 0 = no limit
    unread_answers: Annotated[int, Range(1, 1 << 16)] = 64  # then a robot that does not read is dropped
    handshake_s: Patience = 10.0  # for TLS, and from a stream's start to its Hello
    unfinished_s: Patience = 10.0  # for an observation to arrive, and for a robot to take an answer
    idle_s: Annotated[float, Range(0, 1_000_000)] = 600.0  # without a word from a robot; 0 = for ever

    def __post_init__(self) -> None:
        check_fields(self, "limits")


@dataclass
class LeRobotConfig:
    """How LeRobot's own clients are served (`lerobot_listen`)."""

    strict: bool = False  # refuse a client that asks for another policy than is served, instead of a warning


@dataclass
class ServerConfig:
    """`policy-server start BUNDLE [BUNDLE ...]`: serve policies to robots until a signal.

    A BUNDLE is a folder, the name of a shipped bundle, a LeRobot checkpoint (folder, training run, hub id in the cache;
    exported once, with --fps and --robot.type), module:function or module:Class of a policy in Python, or
    openpi://HOST:PORT of a policy behind an openpi server (openpis:// with TLS).
    """

    bundles: list[str] = field(default_factory=list)  # folders, shipped ones, module:function; the first is the default
    engine: Literal["onnx", "lerobot"] = "onnx"  # lerobot: LeRobot checkpoints instead of bundles, run by LeRobot
    robot: StatedRobot = field(default_factory=StatedRobot)  # of a checkpoint, as in export-onnx
    names: list[str] = field(default_factory=list)  # of a checkpoint's joints, for a robot that is not in the table
    units: list[str] = field(default_factory=list)  # one for all joints, or one for each
    fps: Annotated[float, Range(0.1, 1000)] | None = None  # rate that a checkpoint was trained at
    device: str = "auto"  # where LeRobot's torch computes: cpu, cuda, cuda:1, mps
    model_dir: Path | None = None  # every bundle in it, by name, after those above
    admin_socket: Path | None = None  # for `policy-server models`, mode 0600
    metrics_port: Port | None = None  # Prometheus on 127.0.0.1; 0 = any free port, which the log names
    listen: str = "127.0.0.1:8080"  # HOST:PORT, or unix:/path with mode 0600
    lerobot_listen: str = ""  # HOST:PORT for LeRobot's RobotClient, unchanged; it has neither TLS nor token
    lerobot: LeRobotConfig = field(default_factory=LeRobotConfig)
    openpi_listen: str = ""  # HOST:PORT for openpi's clients, unchanged; without TLS, the token is their API key
    map: Path | None = None  # YAML: what openpi's messages hold, for openpi:// and for openpi_listen
    openpi: OpenpiConfig = field(default_factory=OpenpiConfig)
    socket_group: str = ""  # whose members may use the Unix socket too, mode 0660
    tls: TlsConfig = field(default_factory=TlsConfig)
    token_file: Path | None = None  # bearer tokens, one a line; only its owner may read it; read again on SIGHUP
    trusted_proxies: list[str] = field(default_factory=list)  # load balancers, whose sessions are told apart
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    providers: Providers = "auto"  # auto takes CUDA where it works, else the CPU, and says which
    provider_options: dict[str, dict[str, bool | int | float | str]] = field(default_factory=dict)  # cuda, tensorrt
    cuda_graphs: bool = False  # capture what has a static shape once and replay it (ACT; SmolVLA's steps)
    cache_dir: Path = DEFAULT_CACHE  # what TensorRT built, and bundles made of checkpoints
    threads: Annotated[int, Range(0, 1024)] = 0  # of one inference; 0 = the physical cores
    max_sessions: Annotated[int, Range(1, 1024)] = 16  # robots at once
    max_batch: Annotated[int, Range(1, 1024)] = 8  # observations in one inference
    batch_window_ms: Milliseconds = 0.0  # how long an idle engine waits for company; 0 = not at all
    inject_latency_ms: Milliseconds = 0.0  # a delay after each inference, to try out a slower one
    insecure: bool = False  # listen beyond loopback without TLS, or without client certificates or a token
    until_stdin_closes: bool = False  # end with the process that holds the other end of stdin
    debug: bool = False  # tracebacks, debug log

    def __post_init__(self) -> None:
        check_fields(self)
        if self.engine == "lerobot" and self.model_dir is not None:
            raise ConfigError("model_dir: it holds bundles, and --engine=lerobot serves the checkpoints that are named")
        asks_openpi = any(name.startswith(("openpi://", "openpis://")) for name in self.bundles)
        if self.map is not None and not asks_openpi and not self.openpi_listen:
            raise ConfigError("map: belongs to openpi://HOST:PORT or openpi_listen, and neither is given")
        if self.openpi.api_key_file is not None and not asks_openpi:
            raise ConfigError("openpi.api_key_file: belongs to openpi://HOST:PORT, which is not given")
        if self.listen.startswith("unix:") and self.tls.cert is not None:
            raise ConfigError("tls.cert: a Unix socket has no TLS; its mode says who may use it")
        if self.socket_group and not self.listen.startswith("unix:"):
            raise ConfigError(f"socket_group: {self.listen} is not a Unix socket")
        if self.limits.connections < self.max_sessions:
            raise ConfigError(
                f"limits.connections: {self.limits.connections} is less than max_sessions {self.max_sessions}"
            )
        check_options(self.provider_options, CONFIGURABLE)

    @property
    def accelerated(self) -> bool:
        """Whether something else than the CPU would be tried first. Raises ConfigError for what is not here."""
        return self.device != "cpu" if self.engine == "lerobot" else wants_accelerator(self.providers)
