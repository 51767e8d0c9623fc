"""The demo's three processes: virtual arm, policy server, runtime; each ends with the one that started it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from edge_runtime.errors import EdgeRuntimeError

STOP_S = 10.0
POLL_S = 0.01


class Process:
    """A program of ours whose stderr goes to a file in `logs`; it is ended when the context ends."""

    def __init__(self, name: str, module: str, arguments: Sequence[str], logs: Path) -> None:
        self.name = name
        self._log = logs / f"{name}.log"
        self._command = [sys.executable, "-P", "-m", module, *arguments]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Process:
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        return self

    def ready(self) -> dict[str, Any]:
        """The JSON line it prints once it is ready. Raises its failure."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self.failure()
        report: dict[str, Any] = json.loads(line)
        return report

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def said(self, part: str) -> str:
        """The first line of its log with `part` in it, once it is there. Raises its failure."""
        while True:
            ended = self.poll() is not None
            for line in self._log.read_text().splitlines():
                if part in line:
                    return line
            if ended:
                raise self.failure()
            time.sleep(POLL_S)

    def poll(self) -> int | None:
        assert self._process is not None
        return self._process.poll()

    def finish(self) -> None:
        """Wait for its end. Raises its failure if that was none of its free will."""
        assert self._process is not None
        self._process.communicate()
        if self._process.returncode:
            raise self.failure()

    def failure(self) -> EdgeRuntimeError:
        """What it said last, with its exit code."""
        assert self._process is not None
        code = self._process.wait()
        lines = self._log.read_text().strip().splitlines()
        error = EdgeRuntimeError(f"{self.name}: {lines[-1] if lines else f'ended with exit code {code}'}")
        error.exit_code = code if code > 0 else EdgeRuntimeError.exit_code
        return error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        self._process = None
