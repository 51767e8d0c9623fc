"""Programs in processes of their own: their lines are events, and they end with the context that started them."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_runtime.errors import EdgeRuntimeError

if TYPE_CHECKING:
    from typing_extensions import Self

JOIN_S = 60.0  # a grandchild may hold the pipe for a while


def ours(module: str, *arguments: str) -> list[str]:
    """The command that runs a program of ours; no file in the working folder can stand in for one of its modules."""
    return [sys.executable, "-P", "-m", module, *arguments]


class Process:
    """`command` in a process of its own; its lines, of stdout and stderr, go to `logs`/`name`.log too.

    A context manager: when it is left, the child is told to end and, `stop_s` later, killed. `patience_s` is how long
    to wait for a line or for the end; None = for as long as it takes.
    """

    stop_s = 10.0
    patience_s: float | None = None

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        logs: Path | None = None,
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.lines: list[str] = []
        self._new: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._log = logs / f"{name}.log" if logs else Path(os.devnull)
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=cwd,
            env=env,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self._log.open("w") as log:
            for line in self.process.stdout:
                log.write(line)
                log.flush()
                self.lines.append(line.rstrip("\n"))
                self._new.put(self.lines[-1])
        self._new.put(None)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, part: str) -> str:
        """The first line not waited for before that contains `part`. Raises its failure."""
        until_s = None if self.patience_s is None else time.monotonic() + self.patience_s
        while True:
            try:
                line = self._new.get(timeout=None if until_s is None else max(until_s - time.monotonic(), 0))
            except queue.Empty:
                raise self.failure(f"no {part!r} within {self.patience_s:g} s") from None
            if line is None:
                raise self.failure(f"no {part!r} before its end")
            if part in line:
                return line

    def report(self) -> dict[str, Any]:
        """The JSON line it prints once it is ready. Raises its failure."""
        report: dict[str, Any] = json.loads(self.wait_for("{"))
        return report

    def wait(self) -> int:
        """Its exit code, once it has ended and all its lines are read."""
        code = self.process.wait(self.patience_s)
        self._reader.join(JOIN_S)
        return code

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; the exit code."""
        self.process.send_signal(number)
        return self.wait()

    def finish(self) -> None:
        """Wait for its end. Raises its failure if it did not end well."""
        if self.wait():
            raise self.failure("ended")

    def failure(self, what: str) -> Exception:
        """An error with its last line and its exit code; `what` went wrong where it said nothing."""
        code = self.process.poll() or 0
        error = EdgeRuntimeError(f"{self.name}: {self.lines[-1] if self.lines else f'{what}, with exit code {code}'}")
        error.exit_code = code if code > 0 else EdgeRuntimeError.exit_code
        return error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.stop_s and self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(self.stop_s)
        self.process.kill()
        self.process.wait()
        self._reader.join(JOIN_S)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
