"""What a program writes: its stdout, and files, which it looks at before it begins."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edge_runtime.errors import OutputError


def check(path: Path | None, setting: str) -> None:
    """Raises OutputError when the file that `setting` names could not be written; it is not touched."""
    if path is None:
        return
    try:
        if not path.exists():
            check_folder(path.parent, setting)
        elif path.is_dir():
            raise OutputError(f"{setting}: {path} is a folder, expected a file")
        elif not _takes_text(path):
            raise OutputError(f"{setting}: {path} is neither a file nor a device such as /dev/null")
        elif not _may_write(path):
            raise OutputError(f"{setting}: {path} may not be written by this user")
    except PermissionError as error:
        raise OutputError(f"{setting}: {path} may not be looked for by this user") from error


def check_folder(folder: Path, setting: str) -> None:
    """Raises OutputError when no file could be made in `folder`."""
    if not folder.is_dir():
        raise OutputError(f"{setting}: there is no folder {folder}")
    if not _may_write(folder):
        raise OutputError(f"{setting}: {folder} may not be written by this user")


def make_folder(folder: Path, setting: str) -> None:
    """Raises OutputError when it cannot be made, or not be written into."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise OutputError(f"{setting}: {folder} is not a folder") from error
    except OSError as error:
        raise OutputError(f"{setting}: cannot make the folder {folder}: {error.strerror}") from error
    if not _may_write(folder):
        raise OutputError(f"{setting}: {folder} may not be written by this user")


def write(path: Path, text: str, setting: str) -> None:
    """Raises OutputError."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{setting}: cannot write {path}: {error.strerror or error}") from error


def open_streams() -> None:
    """Open to nowhere what the caller closed of stdin, stdout and stderr: their numbers are not for other files."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # its number is the lowest that is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115


def say(text: str) -> None:
    """A line on stdout, at once. Raises OutputError when its reader has gone, or when it is a file on a full disk."""
    with _stdout():
        print(text, flush=True)


def flush() -> None:
    """Raises OutputError when what was printed does not arrive."""
    with _stdout():
        sys.stdout.flush()


@contextmanager
def _stdout() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # or the interpreter tries again at exit
        os.close(nowhere)
        raise OutputError(f"stdout: {(error.strerror or str(error)).lower()}") from error


def _takes_text(path: Path) -> bool:
    """A pipe by its name would be waited for; not one that we hold open, such as /dev/stdout: somebody reads that."""
    mode = path.stat().st_mode
    return stat.S_ISREG(mode) or stat.S_ISCHR(mode) or path.resolve().parent == Path(f"/proc/{os.getpid()}/fd")


def _may_write(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=True)
