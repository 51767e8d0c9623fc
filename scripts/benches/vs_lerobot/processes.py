"""Programs of the comparison: each on the processors it is given, its words in a log, ended with its context."""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).parents[3]
PATH = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
END_S = 15.0

Cpus = frozenset[int]


def processors() -> tuple[Cpus, Cpus]:
    """Those for the robot's side (one, so that a hog can share it) and those for all else; the same where there is
    but one."""
    mine = sorted(os.sched_getaffinity(0))
    return frozenset(mine[-1:]), frozenset(mine[:-1] or mine)


@contextmanager
def placed(cpus: Cpus) -> Iterator[None]:
    """What this thread starts runs on `cpus`."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Program:
    """A process in `folder`; what it says goes to `folder`/`name`.log too. A context manager."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, cpus: Cpus) -> None:
        self.name = name
        self._log = (folder / f"{name}.log").open("a")
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        with placed(cpus):
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=folder,
                env=os.environ | {"PYTHONPATH": PATH, "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"},
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def said(self, part: str, timeout_s: float = 60.0) -> str:
        """The next line with `part` in it."""
        until_s = time.monotonic() + timeout_s
        while True:
            try:
                line = self._lines.get(timeout=max(until_s - time.monotonic(), 0.0))
            except queue.Empty:
                raise TimeoutError(f"{self.name}: no {part!r} within {timeout_s:g} s; see its log") from None
            if line is None:
                raise RuntimeError(f"{self.name} ended with {self._process.wait()} before it said {part!r}")
            if part in line:
                return line.strip()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def wait(self, timeout_s: float) -> int:
        """Its exit code, once it has ended by itself."""
        return self._process.wait(timeout_s)

    def end(self) -> None:
        """With SIGTERM, or with its stdin for who waits for that; twice is harmless."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._reader.join()
        self._log.close()

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._log.write(line)
            self._lines.put(line)
        self._lines.put(None)


def hog(folder: Path, cpus: Cpus) -> Program:
    """A process that computes without end."""
    return Program("hog", [sys.executable, "-c", "while True: pass"], folder, cpus)
