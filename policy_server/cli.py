"""`policy-server WORD …`: a table of words, each loaded when it is used."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import sys
from concurrent.futures import CancelledError, Future, InvalidStateError
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edge_runtime.errors import ConfigError, EdgeRuntimeError, UsageError
from edge_runtime.program import flags, lerobot_flags, logs, systemd
from edge_runtime.program.signals import at_end_of_stdin, handling_signals

if TYPE_CHECKING:
    from policy_server.config import ServerConfig
    from policy_server.engines import Source

log = logging.getLogger(__name__)

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_LARGE = 1 << 20  # bytes

WORDS = {
    "start": ("policy_server.cli:start", "serve exported policies to robots"),
    "make-certs": ("policy_server.door.certificates:main", "write a private CA, a server's and a robot's certificate"),
    "models": ("policy_server.admin.client:main", "list, load, unload or replace policies of a running server"),
    "service": ("policy_server.cli:service", "install, uninstall or show the systemd service"),
}


def main() -> int:
    """The entry point of `policy-server`; the exit codes are those of `errors`."""
    return flags.run_main(dispatch, sys.argv[1:], "policy-server")


def dispatch(argv: list[str]) -> int:
    return flags.dispatch("policy-server", WORDS, argv)


def start(argv: list[str]) -> int:
    """`policy-server start BUNDLE [BUNDLE …]`: serve until SIGTERM or SIGINT, then exit 0."""
    from policy_server.config import ServerConfig

    argv = lerobot_flags.translated(argv, lerobot_flags.SERVER, "policy-server start")
    config = flags.parse(ServerConfig, argv, prog="policy-server start", positional="bundles")
    if not config.bundles and config.model_dir is None:
        raise UsageError("bundle: none given: policy-server start BUNDLE [BUNDLE ...], or --model_dir=FOLDER")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC's core writes to stderr by itself what we say in one line
    stop: Future[None] = Future()
    server: PolicyServer | None = None

    def heed(number: int) -> None:
        if number == signal.SIGHUP:
            if server is not None:  # else it has yet to read what it would read again
                server.reload()
        elif stop.done():  # asked twice: somebody is in a hurry
            os._exit(128 + number)
        else:
            _finish(stop)

    level = logging.DEBUG if config.debug else logging.INFO
    with logs.to_stderr(level), handling_signals(heed, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if config.until_stdin_closes:
            at_end_of_stdin(lambda: _finish(stop))

        import cv2

        from policy_server.server import PolicyServer

        _give_pictures_back()
        cv2.setNumThreads(1)  # frames are decoded on the sessions' threads; a pool under them would only be in the way
        try:
            sources = _sources(_exported(config, stop), argv)
        except CancelledError:
            return 0
        with PolicyServer(config, sources) as server:
            server.run(stop)
            log.info("stopping")
    return 0


def service(argv: list[str]) -> int:
    return systemd.main(argv, systemd.Program("policy-server", "policy_server", ("video", "render"), _needs))


def _needs(path: Path) -> systemd.Needs:
    """Raises ConfigError for a configuration in `path` that could not start."""
    from policy_server.config import ServerConfig
    from policy_server.engines import checkpoint_folder

    config = flags.parse(ServerConfig, [f"--config_path={path}"], prog="policy-server start")
    if not config.bundles and config.model_dir is None:
        raise ConfigError(f"bundles: {path} names none")
    for name in config.bundles if config.engine == "onnx" else ():
        if checkpoint_folder.find(name) is not None:
            raise ConfigError(f"bundles: {name} is a checkpoint, and a service serves bundles: export-onnx {name} …")
    _sources(config, [])
    sockets = [Path(config.listen.removeprefix("unix:"))] if config.listen.startswith("unix:") else []
    sockets += [config.admin_socket] if config.admin_socket is not None else []
    writes = dict.fromkeys(
        [*(socket.absolute().parent for socket in sockets), config.cache_dir.expanduser().absolute()]
    )
    return systemd.Needs(writes=tuple(writes), accelerator=config.accelerated)


def _exported(config: ServerConfig, stop: Future[None]) -> ServerConfig:
    """With a bundle in the place of each LeRobot checkpoint. Raises what the export does, or CancelledError."""
    from policy_server.engines import checkpoint_folder, exported
    from policy_server.engines.stated import StatedRobot, stated

    if config.engine == "lerobot":
        return config
    found = {name: folder for name in config.bundles if (folder := checkpoint_folder.find(name)) is not None}
    if not found:
        return config
    try:
        robot = stated(config.robot, config.names, config.units, config.fps)
    except EdgeRuntimeError as error:
        error.args = (f"{next(iter(found))} is a LeRobot checkpoint: {error}",)
        raise
    made = {name: str(exported.bundle_of(name, found[name], robot, config.cache_dir, stop)) for name in found}
    bundles = [made.get(name, name) for name in config.bundles]
    return replace(config, bundles=bundles, robot=StatedRobot(), names=[], units=[], fps=None)


def _sources(config: ServerConfig, argv: list[str]) -> list[Source]:
    """All that is to be offered, checked; code only where the command line itself names it.

    Raises UsageError, ModelError, ConfigError.
    """
    from policy_server import bundle
    from policy_server.engines.lerobot import LeRobotPolicy
    from policy_server.engines.openpi.engine import OpenpiPolicy, is_openpi
    from policy_server.engines.sources import find
    from policy_server.engines.stated import stated

    if config.engine == "lerobot":
        told = stated(config.robot, config.names, config.units, config.fps)
        return [LeRobotPolicy(name, told, config.device) for name in config.bundles]
    offered = [
        OpenpiPolicy(name, config.map, config.openpi, insecure=config.insecure) if is_openpi(name) else find(name, argv)
        for name in config.bundles
    ]
    inside = bundle.inside(config.model_dir) if config.model_dir is not None else []
    if config.robot.type or config.names or config.units or config.fps:
        raise ConfigError("engine: a bundle says its joints and rate itself; they are stated for a checkpoint")
    return [*offered, *map(bundle.load, inside)]


def _give_pictures_back() -> None:
    """Have the C library return each block of 1 MiB and more to the system when it is freed, not keep it for later.

    glibc raises that bound to the largest block it ever freed, and its arenas then hold the pictures of robots that
    left: 1.5 GB after 24 sessions with 2 x 3200 x 3200, instead of 0.5 GB (of which most is ONNX Runtime's own).
    malloc_trim(0) would give as much back, but takes up to 260 ms with the arenas locked.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # not in musl
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE)
        mallopt(_M_TRIM_THRESHOLD, 2 * _LARGE)  # as glibc keeps the two


def _finish(stop: Future[None]) -> None:
    with contextlib.suppress(InvalidStateError):  # somebody else was first
        stop.set_result(None)
