"""What the robot is told to do: a text, or a file's first line, which may change while it works."""

from __future__ import annotations

import logging
from io import TextIOWrapper
from pathlib import Path

from edge_runtime.errors import ConfigError
from edge_runtime.program import files

log = logging.getLogger(__name__)

LONGEST = 1024  # characters; the policies read 48 tokens


class Task:
    """`text()` is what the next observation says. Raises ConfigError for what cannot be said, or read, at the start."""

    def __init__(self, text: str, file: Path | None = None) -> None:
        if len(text) > LONGEST:
            raise ConfigError(f"task: {len(text)} characters, expected at most {LONGEST}")
        self._file = file
        self._changed_ns = 0
        self._text = text
        if file is not None:
            try:
                self._read(file)
            except OSError as error:
                raise ConfigError(f"task_file: cannot read {file}: {error.strerror}") from error
            except UnicodeDecodeError as error:
                raise ConfigError(f"task_file: {file} is not text in UTF-8") from error

    def text(self) -> str:
        if self._file is not None:
            try:
                self._read(self._file)
            except (OSError, UnicodeDecodeError) as error:
                log.debug("task_file: %s", error)  # an editor may be replacing it: the last text holds
        return self._text

    def _read(self, file: Path) -> None:
        changed_ns = file.stat().st_mtime_ns
        if changed_ns == self._changed_ns:
            return
        with files.open_regular(file) as opened, TextIOWrapper(opened, encoding="utf-8") as text:
            line = text.readline(LONGEST)  # however large the file is
        self._changed_ns = changed_ns
        self._text = line.strip("\n")
        log.info("task: %s", self._text)
