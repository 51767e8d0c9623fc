"""Every setting of the policy server, with its unit in its name."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from edge_runtime.errors import ConfigError
from policy_server.engines.providers import Providers


@dataclass
class ServerConfig:
    """`policy-server start BUNDLE [BUNDLE ...]`: serve policies to robots until a signal."""

    bundles: list[str] = field(default_factory=list)  # folders, or names of shipped bundles; the first is the default
    listen: str = "127.0.0.1:8080"  # HOST:PORT, or unix:/path with mode 0600
    providers: Providers = "auto"  # auto takes CUDA where it works, else the CPU, and says which
    threads: int = 0  # of one inference; 0 = the physical cores
    max_sessions: int = 16  # robots at once
    max_batch: int = 8  # observations in one inference
    batch_window_ms: float = 0.0  # how long an idle engine waits for company; 0 = not at all
    inject_latency_ms: float = 0.0  # a delay after each inference, to try out a slower one
    insecure: bool = False  # listen beyond loopback although there is neither TLS nor a token
    until_stdin_closes: bool = False  # end with the process that holds the other end of stdin
    debug: bool = False  # tracebacks, debug log

    def __post_init__(self) -> None:
        for name, low, high in (("threads", 0, 1024), ("max_sessions", 1, 1024), ("max_batch", 1, 1024)):
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"{name}: {getattr(self, name)} is not in {low}..{high}")
        for name in ("batch_window_ms", "inject_latency_ms"):
            value = getattr(self, name)
            if not (math.isfinite(value) and 0 <= value <= 60_000):
                raise ConfigError(f"{name}: {value:g} is not in 0..60000")
