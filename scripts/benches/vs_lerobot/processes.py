"""Programs of the comparison: each on the processors it is given, its words in a log, ended with its context."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from edge_runtime.tools.demo.processes import Process

ROOT = Path(__file__).parents[3]
PATH = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
ENVIRONMENT = {"PYTHONPATH": PATH, "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}

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


class Program(Process):
    """`command` in `folder`, on `cpus`; its lines go to `folder`/`name`.log too."""

    stop_s = 15.0
    patience_s = 120.0

    def __init__(self, name: str, command: Sequence[str], folder: Path, cpus: Cpus) -> None:
        with placed(cpus):
            super().__init__(name, command, folder, cwd=folder, env=os.environ | ENVIRONMENT)


def hog(folder: Path, cpus: Cpus) -> Program:
    """A process that computes without end."""
    return Program("hog", [sys.executable, "-c", "while True: pass"], folder, cpus)
