"""A policy server of our own on a Unix socket, for one machine that is both robot and accelerator."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from types import TracebackType

from edge_runtime.config import NoRobotConfig, RobotConfig, SOFollowerConfig, StartConfig
from edge_runtime.errors import EdgeRuntimeError, ModelError, UsageError

log = logging.getLogger(__name__)

STOP_S = 5.0
MANIFEST = "manifest.json"  # in a bundle
WAITING_EVERY_S = 0.1
_LOGGED = re.compile(r"\S+ \S+ ([A-Z]+) \S+: (.*)")  # time, level, who, what
_SERVES = "serving ["
_LAST_WORDS = "policy-server: "  # how its one line begins when it fails


def robot_of(config: StartConfig) -> list[str]:
    """What the run knows of a LeRobot checkpoint that the checkpoint does not say; a bundle says it itself."""
    source, robot = config.bundle, config.robot
    if source is None or (source / MANIFEST).is_file() or not (source.is_dir() or len(source.parts) > 1):
        return []
    told = [f"--fps={config.fps:g}"]
    if isinstance(robot, SOFollowerConfig):
        told += [
            f"--robot.type={RobotConfig.get_choice_name(type(robot))}",
            f"--robot.use_degrees={str(robot.use_degrees).lower()}",
        ]
    elif isinstance(robot, NoRobotConfig) and robot.joints:
        told += [f"--names={','.join(robot.joints)}", f"--units={','.join(robot.joints.values())}"]
    return told


class LocalServer:
    """Runs `policy-server start BUNDLE` as a child that ends with this process; `address` is where it listens.

    What it logs is logged here. `on_exit` is called when it has ended, whatever the reason.
    """

    def __init__(self, config: StartConfig, *, on_exit: Callable[[], None]) -> None:
        self._bundle = config.bundle
        self._told = robot_of(config)
        self._on_exit = on_exit
        self._last_words = ""
        self._settled = threading.Event()  # it serves, or has ended
        self._folder = tempfile.TemporaryDirectory(prefix="edge-runtime-")
        self.address = f"unix:{self._folder.name}/policy.sock"
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> LocalServer:
        self._process = subprocess.Popen(
            [
                sys.executable,
                *("-P", "-m", "policy_server", "start", str(self._bundle), *self._told),
                f"--listen={self.address}",
                "--until_stdin_closes=true",  # so that it ends with us, however we end
            ],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",  # libraries below it may say anything
        )
        self._watcher = threading.Thread(target=self._watch, args=(self._process,), name="local-server", daemon=True)
        self._watcher.start()
        return self

    def wait(self, cancelled: threading.Event, waiting: Callable[[], None] = lambda: None) -> None:
        """Returns once it serves, has ended, or `cancelled`; `waiting` is called now and then until it does."""
        while not self._settled.wait(WAITING_EVERY_S) and not cancelled.is_set():
            waiting()

    @property
    def failed(self) -> bool:
        """It ended by itself, and not because it was told to, as by Ctrl-C in the terminal that both have."""
        return self._process is not None and self._process.poll() not in (None, 0)

    def failure(self) -> EdgeRuntimeError:
        """Why it ended, in its own words where it had some, and with its exit code."""
        self._watcher.join(STOP_S)
        code = self._process.returncode if self._process is not None else 0
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        said = self._last_words or f"the policy server for {self._bundle} {how}"
        error = EdgeRuntimeError(said if said.startswith("bundle: ") else f"bundle: {said}")
        if code > 0:
            error.exit_code = ModelError.exit_code if code == UsageError.exit_code else code
        return error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._watcher.join()
            for pipe in (self._process.stdin, self._process.stderr):
                if pipe is not None:
                    pipe.close()
            self._process = None
        self._folder.cleanup()

    def _watch(self, process: subprocess.Popen[str]) -> None:
        """Pass on what it logs; what it ends with is ours to say."""
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith(_LAST_WORDS):
                self._last_words = line.removeprefix(_LAST_WORDS).strip()
                continue
            found = _LOGGED.match(line)
            level, said = found.groups() if found else ("INFO", line.rstrip())
            log.log(getattr(logging, level, logging.INFO), "%s", said)
            if said.startswith(_SERVES):
                self._settled.set()
        process.wait()
        self._on_exit()
        self._settled.set()
