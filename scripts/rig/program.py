"""The product's programs as a user starts them: processes that end with their context, and their lines as events."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from edge_runtime.tools.demo.processes import Process, ours

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


class Program(Process):
    """`PROGRAM WORD …` for tests and benches: it dies with its context, and a failure shows all its lines."""

    stop_s = 0.0
    patience_s: float | None = WAIT_S

    def __init__(self, program: str, arguments: Sequence[str], folder: Path) -> None:
        super().__init__(program, ours(MODULES[program], *arguments), cwd=folder)

    def failure(self, what: str) -> Exception:
        return AssertionError(f"{self.name}: {what}:\n{self.text}")


class Arm(Program):
    """A virtual arm, and what its bus has seen."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        flags = ["--http_port=0", f"--link={folder}/arm", f"--calibration_dir={folder}", "--until_stdin_closes=true"]
        with as_hardware():
            super().__init__("edge-runtime", ["virtual-arm", *flags, *arguments], folder)
        self.ready = self.report()

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
    def robot(self) -> list[str]:
        """The flags that tell `edge-runtime` about this arm."""
        return [
            "--robot.type=so101_follower",
            f"--robot.port={self.ready['port']}",
            f"--robot.id={self.ready['robot_id']}",
            f"--robot.calibration_dir={self.ready['calibration_dir']}",
            "--robot.bus_timeout_ms=100",  # the virtual servos share the machine with whatever else it does
        ]

    @property
    def flags(self) -> list[str]:
        """The same with the scene's state, for `edge-runtime start` and the policy that sees no pictures."""
        return [*self.robot, f"--extra_state={{environment_state: {self.ready['http']}/state}}"]


class Server(Program):
    """A policy server; `address` is where it listens."""

    def __init__(self, folder: Path, bundle: str, *arguments: str, listen: str = "127.0.0.1:0") -> None:
        super().__init__(
            "policy-server", ["start", bundle, f"--listen={listen}", "--until_stdin_closes=true", *arguments], folder
        )
        self.address = self.wait_for("serving [").split()[-1]


class Edge(Program):
    """`edge-runtime start`; it is told to end, so that it lets go of the arm."""

    stop_s = 20.0

    def __init__(self, folder: Path, *arguments: str) -> None:
        super().__init__("edge-runtime", ["start", *arguments], folder)
