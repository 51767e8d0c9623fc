"""JSON in a file that a user names, and in a clause what keeps it from being read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from edge_runtime import input_file

MOST_BYTES = 1 << 26


def read(path: Path, most_bytes: int = MOST_BYTES) -> Any:
    """What is in `path`. Raises ValueError with the rest of a sentence that begins with the file's name."""
    try:
        with input_file.open_regular(path) as file:
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
