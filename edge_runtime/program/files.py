"""Files that a user names: only regular ones, opened without waiting; and the JSON in them."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

MOST_BYTES = 1 << 26


@contextmanager
def open_regular(path: Path) -> Iterator[BufferedReader]:
    """`path`, opened at once. Raises OSError, also for a FIFO, a socket or a device in its place."""
    with open(path, "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # of what was opened: its name may mean another by now
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
        yield file


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a FIFO would wait for a writer


def read_json(path: Path, most_bytes: int = MOST_BYTES) -> Any:
    """What is in `path`. Raises ValueError with the rest of a sentence that begins with the file's name."""
    try:
        with open_regular(path) as file:
            data = file.read(most_bytes + 1)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror or error}") from error
    if len(data) > most_bytes:
        raise ValueError(f"has more than {most_bytes} bytes")
    if not data.strip():
        raise ValueError("is empty")
    try:
        return json.loads(data)
    except UnicodeDecodeError as error:
        raise ValueError("is not JSON, nor text at all") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: line {error.lineno}: {error.msg[0].lower()}{error.msg[1:]}") from error
    except RecursionError as error:
        raise ValueError("is not JSON: it is nested too deeply") from error
