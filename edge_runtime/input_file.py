"""A file that a user names, opened to be read: a regular one, for others are waited for, or never end."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path


@contextmanager
def open_regular(path: Path) -> Iterator[BufferedReader]:
    """`path`, opened at once. Raises OSError, also for a FIFO, a socket or a device in its place."""
    with open(path, "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # of what was opened: its name may mean another by now
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
        yield file


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a FIFO would wait for a writer
