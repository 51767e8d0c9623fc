"""A policy server of our own on a Unix socket, for one machine that is both robot and accelerator."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType

from edge_runtime.errors import EdgeRuntimeError, ModelError

STOP_S = 5.0


class LocalServer:
    """Runs `policy-server start BUNDLE` as a child that ends with this process; `address` is where it listens."""

    def __init__(self, bundle: Path, *, on_exit: threading.Event) -> None:
        self._bundle = bundle
        self._exited = on_exit
        self._folder = tempfile.TemporaryDirectory(prefix="edge-runtime-")
        self.address = f"unix:{self._folder.name}/policy.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> LocalServer:
        self._process = subprocess.Popen(
            [
                sys.executable,
                *("-m", "policy_server", "start", str(self._bundle)),
                f"--listen={self.address}",
                "--until_stdin_closes=true",  # so that it ends with us, however we end
            ],
            stdin=subprocess.PIPE,
        )
        threading.Thread(target=self._watch, args=(self._process,), name="local-server", daemon=True).start()
        return self

    @property
    def exited(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def failure(self) -> EdgeRuntimeError:
        """Why it ended: the server has said it on stderr, which is ours."""
        code = self._process.returncode if self._process is not None else None
        error = ModelError(f"bundle: the policy server for {self._bundle} ended with exit code {code}")
        if code in (65, 73, 76, 77, 78):
            error.exit_code = code
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
            if self._process.stdin is not None:
                self._process.stdin.close()
            self._process = None
        self._folder.cleanup()

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        self._exited.set()
