"""A folder that appears whole under its name, or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from edge_runtime.errors import OutputError


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to write into, which becomes `path` when the block ends well and is removed when it does not.

    Raises OutputError when `path` exists, cannot be created, or the disk fills up on the way: whatever the block reads
    it has to have read before.
    """
    refuse_existing(path)
    home = next(folder for folder in path.absolute().parents if folder.exists())  # on the same disk as `path`
    partial = home / f".{path.name}.{os.getpid()}.partial"
    try:
        partial.mkdir()
        yield partial
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.rename(path)
    except OSError as error:
        raise OutputError(f"output: cannot write {path}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def refuse_existing(path: Path) -> None:
    """Raises OutputError when there is anything at `path`."""
    if path.exists() or path.is_symlink():
        raise OutputError(f"output: {path} exists; remove it or choose another folder")
