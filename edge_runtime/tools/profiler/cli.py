"""`edge-runtime profile`: where every millisecond goes, against a running server or one of its own."""

from __future__ import annotations

import json
import logging
import sys
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from edge_runtime.config import NoRobotConfig, RobotConfig, StartConfig, Tolerance
from edge_runtime.errors import CameraError, ConfigError, StreamError
from edge_runtime.program import flags, logs, output
from edge_runtime.program.schema import FOREVER_S, Milliseconds, Range
from edge_runtime.tools.profiler.stand_in import SYNTHETIC


@dataclass
class ProfileConfig(StartConfig):
    """`edge-runtime profile`: run as `start` does, and say what bounds the loop.

    All settings of `start` count. By default there is no robot (robot.type=none): joints, cameras and extra state are
    the policy's, and nothing moves. With a real arm the policy moves it.
    """

    robot: RobotConfig = field(default_factory=NoRobotConfig)
    duration_s: Annotated[float, Range(0, FOREVER_S)] = 20.0  # 0 = until `chunks` or a signal
    chunks: Annotated[int, Range(0)] = 0  # end after so many round trips; 0 = after duration_s
    idle_gap_ms: Milliseconds = 0.0  # rest between a chunk and the next observation: clocks that fall asleep show up
    frames: str = SYNTHETIC  # robot.type=none: what its cameras see; or the path of a video
    similarity_tolerance: Tolerance | None = 0.0  # 0 = every observation is run
    status: bool = False  # it shows its own progress
    json: Path | None = None  # all figures, and each round trip
    html: Path | None = None  # a page of its own with the figures drawn

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode == "sequential":
            raise ConfigError("mode: the profiler measures mode=async; what it says of a round trip holds for both")


def main(argv: list[str]) -> int:
    config = flags.parse(ProfileConfig, argv, prog="edge-runtime profile")
    if config.frames != SYNTHETIC and not Path(config.frames).exists():
        raise CameraError(f"frames: {config.frames} is not there, expected {SYNTHETIC} or the path of a video")
    for name in ("json", "html"):
        output.check(getattr(config, name), name)
    from edge_runtime.acting.supervisor.client import watch_over

    with ExitStack() as stack:
        stack.enter_context(
            logs.to_stderr(logging.DEBUG if config.debug else logging.WARNING, "%(levelname)s %(message)s")
        )
        supervisor = stack.enter_context(watch_over(config))  # before grpc, whose threads do not survive a fork
        from edge_runtime.tools.profiler import page, text
        from edge_runtime.tools.profiler.run import profile

        findings = profile(_ready(config, stack), supervisor, chunks=config.chunks, idle_gap_ms=config.idle_gap_ms)
    print(text.report(findings))
    if config.json is not None:
        _write(config.json, json.dumps(text.as_dict(findings), indent=1) + "\n", "json")
    if config.html is not None:
        _write(config.html, page.render(findings), "html")
    return 0


def _ready(config: ProfileConfig, stack: ExitStack) -> ProfileConfig:
    """With a server that runs and, for no robot, all that the server's policy takes."""
    from edge_runtime.link.channel import Access
    from edge_runtime.link.handshake import choose
    from edge_runtime.link.local_server import LocalServer
    from edge_runtime.link.stream import PolicyStream

    if not isinstance(config.robot, NoRobotConfig):
        return config
    exited, server = threading.Event(), None
    if config.bundle is not None:
        server = stack.enter_context(LocalServer(config, on_exit=exited.set))
        server.wait(exited)
        config = replace(config, bundle=None, server_address=server.address)
    access = Access(config.server_address, tls=config.tls, token_file=config.token_file, insecure=config.insecure)
    description = PolicyStream(access, give_up_after_s=config.give_up_after_s).describe(exited)
    if description is None:
        raise server.failure() if server is not None else StreamError("no server")
    from edge_runtime.tools.profiler.stand_in import fill_in

    return fill_in(config, choose(description, config.model), config.frames)


def _write(path: Path, content: str, setting: str) -> None:
    output.write(path, content, setting)
    print(f"written: {path}", file=sys.stderr)
