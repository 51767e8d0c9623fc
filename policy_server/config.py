"""Every setting of the policy server, with its unit in its name."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from edge_runtime.errors import ConfigError
from edge_runtime.program.schema import check_ranges
from policy_server.engines.cache import DEFAULT as DEFAULT_CACHE
from policy_server.engines.options import check as check_options
from policy_server.engines.providers import CONFIGURABLE, Providers


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
    """What a peer may take at most. Whoever takes more is refused or ended, with a status that says so."""

    message_bytes: int = 4 << 20  # one message; a frame comes in pieces of at most 1 MiB
    observation_bytes: int = 64 << 20  # the frames of one observation together
    image_side: int = 8192  # pixels in a frame's height or width; frames have the policy's shape
    connections: int = 128  # at once; those beyond are closed when they come
    sessions_per_peer: int = 8  # from one address (IPv6: one /64); this machine is free; 0 = max_sessions
    observations_per_second: float = 500.0  # of one session, pings included, and as many at once; 0 = no limit
    unread_answers: int = 64  # then a robot that does not read is dropped
    handshake_s: float = 10.0  # for TLS, and from a stream's start to its Hello
    unfinished_s: float = 10.0  # for an observation to arrive, and for a robot to take an answer
    idle_s: float = 600.0  # without a word from a robot; 0 = for ever

    def __post_init__(self) -> None:
        check_ranges(
            self,
            "limits",
            message_bytes=(1 << 16, 1 << 30),
            observation_bytes=(1 << 10, 1 << 32),
            image_side=(1, 8192),
            connections=(1, 1 << 16),
            sessions_per_peer=(0, 1024),
            observations_per_second=(0, 1_000_000),
            unread_answers=(1, 1 << 16),
            handshake_s=(0.1, 3600),
            unfinished_s=(0.1, 3600),
            idle_s=(0, 1_000_000),
        )


@dataclass
class ServerConfig:
    """`policy-server start BUNDLE [BUNDLE ...]`: serve policies to robots until a signal."""

    bundles: list[str] = field(default_factory=list)  # folders, or names of shipped bundles; the first is the default
    model_dir: Path | None = None  # every bundle in it, by name, after those above
    admin_socket: Path | None = None  # for `policy-server models`, mode 0600
    metrics_port: int | None = None  # Prometheus on 127.0.0.1; 0 = any free port, which the log names
    listen: str = "127.0.0.1:8080"  # HOST:PORT, or unix:/path with mode 0600
    socket_group: str = ""  # whose members may use the Unix socket too, mode 0660
    tls: TlsConfig = field(default_factory=TlsConfig)
    token_file: Path | None = None  # bearer tokens, one a line; only its owner may read it; read again on SIGHUP
    trusted_proxies: list[str] = field(
        default_factory=list
    )  # addresses or networks; what comes from there is told apart
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    providers: Providers = "auto"  # auto takes CUDA where it works, else the CPU, and says which
    provider_options: dict[str, dict[str, bool | int | float | str]] = field(default_factory=dict)  # cuda, tensorrt
    cuda_graphs: bool = False  # capture what has a static shape once and replay it (ACT; SmolVLA's steps)
    cache_dir: Path = DEFAULT_CACHE  # what TensorRT built, by weights, versions and device
    threads: int = 0  # of one inference; 0 = the physical cores
    max_sessions: int = 16  # robots at once
    max_batch: int = 8  # observations in one inference
    batch_window_ms: float = 0.0  # how long an idle engine waits for company; 0 = not at all
    inject_latency_ms: float = 0.0  # a delay after each inference, to try out a slower one
    insecure: bool = False  # listen beyond loopback without TLS, or without client certificates or a token
    until_stdin_closes: bool = False  # end with the process that holds the other end of stdin
    debug: bool = False  # tracebacks, debug log

    def __post_init__(self) -> None:
        check_ranges(
            self,
            metrics_port=(0, 65535),
            threads=(0, 1024),
            max_sessions=(1, 1024),
            max_batch=(1, 1024),
            batch_window_ms=(0, 60_000),
            inject_latency_ms=(0, 60_000),
        )
        if self.listen.startswith("unix:") and self.tls.cert is not None:
            raise ConfigError("tls.cert: a Unix socket has no TLS; its mode says who may use it")
        if self.socket_group and not self.listen.startswith("unix:"):
            raise ConfigError(f"socket_group: {self.listen} is not a Unix socket")
        if self.limits.connections < self.max_sessions:
            raise ConfigError(
                f"limits.connections: {self.limits.connections} is less than max_sessions {self.max_sessions}"
            )
        check_options(self.provider_options, CONFIGURABLE)
