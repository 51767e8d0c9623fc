"""Programs are run in this process, as their entry points run them: what they say, and their exit code."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edge_runtime.program import flags
from tests.bad_input.programs import MAINS

Answer = Callable[..., tuple[int, str]]


@pytest.fixture
def answer(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ours_again: None
) -> Answer:
    """`answer("edge-runtime start", "--fps=0")`: the exit code, and the one line without the program's name."""
    monkeypatch.chdir(tmp_path)

    def run(word: str, *arguments: str) -> tuple[int, str]:
        program, *words = word.split()
        capfd.readouterr()
        code = flags.run_main(MAINS[program], [*words, *arguments], program)
        said = capfd.readouterr().err
        assert code, "it was taken for right"
        assert said.startswith(f"{program}: "), said
        assert said.count("\n") == 1, said
        assert len(said) < 400, said
        return code, said.removeprefix(f"{program}: ").rstrip("\n")

    return run


def open_to_all(folder: Path) -> None:
    """Everybody may come here: the folders that pytest makes are its user's alone."""
    for each in (folder, *folder.parents):
        if Path(tempfile.gettempdir()) in each.parents:
            each.chmod(0o755)


@pytest.fixture
def ours_again() -> Iterator[None]:
    """A program takes the signals for its own, and starts a thread that waits for one."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    wakeup = signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)
    if wakeup >= 0:
        with contextlib.suppress(OSError):
            os.write(wakeup, bytes((signal.SIGTERM,)))
            os.close(wakeup)
