"""The product's programs as a user starts them: processes that end with their context, and their lines as events."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

WAIT_S = 60.0
MODULES = {"edge-runtime": "edge_runtime", "policy-server": "policy_server"}


@contextmanager
def as_hardware() -> Iterator[None]:
    """Threads and processes that begin in here wait for no processor, as servos do not; where that is permitted."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, min(before, -15))
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)


class Program:
    """`PROGRAM WORD …` in a process of its own; `wait_for` waits for a line that it writes."""

    def __init__(self, program: str, arguments: Sequence[str], cwd: Path) -> None:
        self.lines: list[str] = []
        self._new: queue.Queue[str | None] = queue.Queue()
        self.process = subprocess.Popen(
            [sys.executable, "-m", MODULES[program], *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=cwd,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            self._new.put(line)
        self._new.put(None)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, part: str) -> str:
        """The first line not waited for before that contains `part`."""
        deadline_s = time.monotonic() + WAIT_S
        while True:
            try:
                line = self._new.get(timeout=max(deadline_s - time.monotonic(), 0))
            except queue.Empty:
                raise AssertionError(f"no {part!r} within {WAIT_S:g} s:\n{self.text}") from None
            assert line is not None, f"no {part!r} before the end:\n{self.text}"
            if part in line:
                return line

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; the exit code."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


class Arm(Program):
    """A virtual arm, and what its bus has seen."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        flags = ["--http_port=0", f"--link={folder}/arm", f"--calibration_dir={folder}", "--until_stdin_closes=true"]
        with as_hardware():
            super().__init__("edge-runtime", ["virtual-arm", *flags, *arguments], folder)
        self.ready: dict[str, Any] = json.loads(self.wait_for('"port"'))

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.ready["http"] + path, timeout=WAIT_S) as response:
            return json.load(response)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(self.ready["http"] + path, json.dumps(body).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=WAIT_S) as response:
            return json.load(response)

    def written(self, register: str) -> list[dict[str, int]]:
        """Each write of `register` in the bus's log: id -> value."""
        return [
            {servo: values[register] for servo, values in entry["values"].items() if register in values}
            for entry in self.get("/log")
            if entry["instruction"] in ("WRITE", "SYNC_WRITE") and register in entry["registers"]
        ]

    def last_write_s(self, *registers: str) -> float:
        """When one of `registers` was last written, on the bus's clock; 0 = not in the log."""
        times = [
            entry["time_s"]
            for entry in self.get("/log")
            if entry["instruction"] in ("WRITE", "SYNC_WRITE") and set(registers) & set(entry["registers"])
        ]
        return max(times, default=0.0)

    def torque(self) -> set[int]:
        """The last value of Torque_Enable that each servo was told."""
        last: dict[str, int] = {}
        for write in self.written("Torque_Enable"):
            last.update({str(servo): value for servo, value in write.items()})
        return set(last.values())

    @property
    def flags(self) -> list[str]:
        """What tells `edge-runtime start` about this arm."""
        return [
            "--robot.type=so101_follower",
            f"--robot.port={self.ready['port']}",
            f"--robot.id={self.ready['robot_id']}",
            f"--robot.calibration_dir={self.ready['calibration_dir']}",
            "--robot.bus_timeout_ms=100",  # the virtual servos share the machine with whatever else it does
            f"--extra_state={{environment_state: {self.ready['http']}/state}}",
        ]


class Server(Program):
    """A policy server; `address` is where it listens."""

    def __init__(self, folder: Path, bundle: str, *arguments: str, listen: str = "127.0.0.1:0") -> None:
        super().__init__(
            "policy-server", ["start", bundle, f"--listen={listen}", "--until_stdin_closes=true", *arguments], folder
        )
        self.address = self.wait_for("serving [").split()[-1]


class Edge(Program):
    """`edge-runtime start`."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        super().__init__("edge-runtime", ["start", *arguments], folder)
