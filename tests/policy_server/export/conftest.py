"""Checkpoints to export, and their older layouts; all of this needs torch and is skipped without it."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HAS_TORCH = importlib.util.find_spec("torch") is not None
collect_ignore_glob = [] if HAS_TORCH else ["test_*.py"]

SMALL = Path(__file__).parents[2] / "checkpoints"
LARGE = Path(os.environ.get("CHECKPOINTS", SMALL))
FOLDERS = {name: f"{name}/checkpoint" for name in ("smolvla_tiny", "pi0_tiny", "pi05_tiny")}
LANGUAGE = ("vlm", "tokenizer")  # beside such a checkpoint, its language model's files


def folder_of(name: str) -> Path:
    """A checkpoint's folder; skips the test where it is one of the larger ones and CHECKPOINTS does not hold it."""
    for root in (SMALL, LARGE):
        if (folder := root / FOLDERS.get(name, name)).is_dir():
            return folder
    return pytest.skip(f"{name}: set CHECKPOINTS to a folder that holds it")


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """On busy cores torch's threads wait for each other longer than they work."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[str], Path]:
    """A checkpoint's folder to tamper with, with its language model beside it."""

    def make(name: str) -> Path:
        source = folder_of(name)
        shutil.copytree(source, tmp_path / name, copy_function=shutil.copyfile)
        for language in LANGUAGE:
            if (source.parent / language).is_dir():
                shutil.copytree(source.parent / language, tmp_path / language, copy_function=shutil.copyfile)
        return tmp_path / name

    return make


def edit(path: Path, **changes: Any) -> None:
    """Set top-level keys of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_step(folder: Path, file: str, step: str, **changes: Any) -> None:
    """Set keys of one processor step's configuration."""
    pipeline = json.loads((folder / file).read_text())
    next(entry for entry in pipeline["steps"] if entry["registry_name"] == step)["config"] |= changes
    (folder / file).write_text(json.dumps(pipeline))


def arguments(name: str, output: Path, *more: str) -> list[str]:
    """The command line that exports a checkpoint by name."""
    folder = folder_of(name)
    stated = ["--robot.type=so101_follower", "--fps=30", *tokenizer_flag(folder)]
    return [str(folder), f"--output={output}", *stated, *more]


def tokenizer_flag(folder: Path) -> list[str]:
    return [f"--tokenizer={place}" for language in LANGUAGE if (place := folder.parent / language).is_dir()]


@pytest.fixture(scope="session")
def bundle_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A checkpoint's bundle, exported once in a run for each set of options."""
    made: dict[tuple[str, ...], Path] = {}

    def export(name: str, *more: str) -> Path:
        from policy_server.export.cli import main

        key = (name, *more)
        if key not in made:
            output = tmp_path_factory.mktemp("bundles") / name
            assert main(arguments(name, output, *more)) == 0
            made[key] = output
        return made[key]

    return export
