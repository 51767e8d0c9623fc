"""`policy-server WORD …`: a table of words, each loaded when it is used."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from typing import TYPE_CHECKING

from edge_runtime import flags, systemd
from edge_runtime.errors import ConfigError, UsageError
from edge_runtime.schema import hint

if TYPE_CHECKING:
    from policy_server.bundle import Bundle
    from policy_server.config import ServerConfig

log = logging.getLogger(__name__)

WORDS = {
    "start": ("policy_server.cli:start", "serve exported policies to robots"),
    "make-certs": ("policy_server.certificates:main", "write a private CA, a server's and a robot's certificate"),
    "models": ("policy_server.models_word:main", "list, load, unload or replace policies of a running server"),
    "service": ("policy_server.cli:service", "install, uninstall or show the systemd service"),
}


def main() -> int:
    """The entry point of `policy-server`; the exit codes are those of `errors`."""
    return flags.run_main(dispatch, sys.argv[1:], "policy-server")


def dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: policy-server WORD [--flag=value …]; policy-server WORD --help\n")
        print("\n".join(f"  {word:<11} {what}" for word, (_, what) in WORDS.items()))
        return 0
    word, *rest = argv
    if word not in WORDS:
        raise UsageError(f"no word {word!r}: {hint(word, WORDS)}")
    module, _, name = WORDS[word][0].partition(":")
    code: int = getattr(importlib.import_module(module), name)(rest)
    return code


def start(argv: list[str]) -> int:
    """`policy-server start BUNDLE [BUNDLE …]`: serve until SIGTERM or SIGINT, then exit 0."""
    from policy_server.config import ServerConfig

    config = flags.parse(ServerConfig, argv, prog="policy-server start", positional="bundles")
    if not config.bundles and config.model_dir is None:
        raise UsageError("bundle: none given: policy-server start BUNDLE [BUNDLE ...], or --model_dir=FOLDER")
    logging.basicConfig(
        level=logging.DEBUG if config.debug else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC's core writes to stderr by itself what we say in one line
    stop: Future[None] = Future()
    signals = _Signals(stop)
    if config.until_stdin_closes:
        threading.Thread(target=_stop_on_end_of_stdin, args=(stop,), name="stdin", daemon=True).start()

    import cv2

    from policy_server.server import PolicyServer

    cv2.setNumThreads(1)  # frames are decoded on the sessions' threads; a pool under them would only be in the way
    with PolicyServer(config, _bundles(config)) as server:
        signals.hang_up = server.reload
        server.run(stop)
        log.info("stopping")
    return 0


def service(argv: list[str]) -> int:
    return systemd.main(argv, systemd.Program("policy-server", "policy_server", ("video", "render"), _needs))


def _needs(path: Path) -> systemd.Needs:
    """Raises ConfigError for a configuration in `path` that could not start."""
    from policy_server.config import ServerConfig

    config = flags.parse(ServerConfig, [f"--config_path={path}"], prog="policy-server start")
    if not config.bundles and config.model_dir is None:
        raise ConfigError(f"bundles: {path} names none")
    _bundles(config)
    return systemd.Needs()


def _bundles(config: ServerConfig) -> list[Bundle]:
    """All that is to be offered, checked. Raises UsageError, ModelError."""
    from policy_server import bundle

    paths = [bundle.locate(name) for name in config.bundles]
    if config.model_dir is not None:
        paths += bundle.inside(config.model_dir)
    return [bundle.load(path) for path in paths]


class _Signals:
    """SIGTERM and SIGINT stop the server in good order, and the same one again does what it does by default.

    SIGHUP calls `hang_up`. A handler runs between two lines of the main thread, maybe inside a lock: so all is done in
    a thread, which gets the signals' numbers through a pipe.
    """

    def __init__(self, stop: Future[None]) -> None:
        self.hang_up: Callable[[], None] = lambda: log.info("nothing to reload yet")
        self._stop = stop
        self._readable, writable = os.pipe()
        os.set_blocking(writable, False)
        signal.set_wakeup_fd(writable)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: signal.signal(number, signal.SIG_DFL))
        signal.signal(signal.SIGHUP, lambda number, frame: None)
        threading.Thread(target=self._heed, name="signals", daemon=True).start()

    def _heed(self) -> None:
        while os.read(self._readable, 1)[0] == signal.SIGHUP:
            self.hang_up()
        _finish(self._stop)


def _stop_on_end_of_stdin(stop: Future[None]) -> None:
    while os.read(0, 4096):
        pass
    _finish(stop)


def _finish(stop: Future[None]) -> None:
    with contextlib.suppress(InvalidStateError):  # somebody else was first
        stop.set_result(None)
