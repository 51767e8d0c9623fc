"""A person at a terminal: a program of ours on a pty, what it shows, and the keys that are pressed."""

from __future__ import annotations

import codecs
import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

PROGRAM = (sys.executable, "-m", "edge_runtime")
PATIENCE_S = 60.0
CTRL_C = "\x03"


class Person:
    """Runs `edge-runtime ARGUMENTS` on a pty of its own, which is its controlling terminal; ends with the context.

    Or another `program`; further keywords are Popen's.
    """

    def __init__(self, *arguments: str, program: Sequence[str] = PROGRAM, **settings: Any) -> None:
        self._command = ["setsid", "--ctty", *program, *arguments]
        self._settings = settings
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._seen = ""
        self._looked_at = 0

    def __enter__(self) -> Person:
        self._master, slave = os.openpty()
        self._process = subprocess.Popen(self._command, stdin=slave, stdout=slave, stderr=slave, **self._settings)
        os.close(slave)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        in_front = struct.unpack("i", fcntl.ioctl(self._master, termios.TIOCGPGRP, bytes(4)))[0]
        if in_front > 0 and self._process.poll() is None:
            os.killpg(in_front, signal.SIGKILL)  # what a shell has started, which may not heed a hang-up
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    def see(self, text: str) -> str:
        """Read until `text` (a regular expression) has appeared after what was seen before; what led up to it."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := re.compile(text).search(self._seen, self._looked_at)):
            if not self._waits_until(deadline) or not self._read():
                raise AssertionError(f"{text!r} did not appear in:\n{self._seen[self._looked_at :]}")
        shown = self._seen[self._looked_at : found.end()]
        self._looked_at = found.end()
        return shown

    def press(self, keys: str = "\n") -> None:
        os.write(self._master, keys.encode())

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    def leave(self) -> int:
        """Read to the end; the exit code."""
        deadline = time.monotonic() + PATIENCE_S
        while self._waits_until(deadline):
            if not self._read():
                return self._process.wait(PATIENCE_S)
        raise AssertionError(f"it did not end after:\n{self._seen[self._looked_at :]}")

    @property
    def widest(self) -> int:
        """Columns of the longest line that was shown."""
        plain = re.sub(r"\x1b\[[0-9]*[A-Za-z]", "", self._seen)
        return max(len(line.rstrip("\r")) for line in plain.split("\n"))

    def _waits_until(self, deadline: float) -> bool:
        """Whether there is something to read, or the end, before that."""
        return bool(select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))[0])

    def _read(self) -> bool:
        try:
            data = os.read(self._master, 4096)
        except OSError:  # EIO: the program has ended
            return False
        self._seen += self._decoder.decode(data)
        return bool(data)
