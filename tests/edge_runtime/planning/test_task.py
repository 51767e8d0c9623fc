"""The task: as it is given, or the first line of a file that may change, and be replaced, at any time."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_runtime.errors import ConfigError
from edge_runtime.planning.task import LONGEST, Task


def put(file: Path, text: str, second: int) -> None:
    file.write_text(text, encoding="utf-8")
    os.utime(file, (second, second))  # the clock of a file system may be too coarse to see two writes apart


def test_it_is_the_files_first_line_as_it_is_now(tmp_path: Path) -> None:
    file = tmp_path / "task.txt"
    put(file, "fold the towel\nand so on\n", 1)
    task = Task("", file)
    assert task.text() == "fold the towel"
    put(file, "é" * 2 * LONGEST, 2)
    assert task.text() == "é" * LONGEST
    put(file, "", 3)
    assert task.text() == ""


@pytest.mark.parametrize("replace", [os.mkfifo, Path.mkdir, lambda file: file.symlink_to("/dev/zero"), str])
def test_the_last_text_holds_while_the_file_is_no_file(tmp_path: Path, replace: Callable[[Path], object]) -> None:
    file = tmp_path / "task.txt"
    put(file, "fold the towel", 1)
    task = Task("", file)
    file.unlink()
    replace(file)
    assert task.text() == "fold the towel"
    with pytest.raises(ConfigError, match=f"task_file: cannot read {file}: "):
        Task("", file)


def test_a_long_text_is_refused_with_its_length() -> None:
    assert Task("x" * LONGEST).text() == "x" * LONGEST
    with pytest.raises(ConfigError, match="task: 1025 characters, expected at most 1024"):
        Task("x" * (LONGEST + 1))
