"""`make bench`: every script that has a short version runs, and one that fails or hangs does not hide the others."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import bench, rig
from tests.pages.test_readme import ELSEWHERE

TAKES_QUICK = "import sys\nquick: bool = sys.argv[1:] == ['--quick']\nassert quick\n"
FAKES = {
    "good": TAKES_QUICK + "print('warming up')\nprint('Reach: 3 of 4: MISSED')\nprint('done')",
    "silent": TAKES_QUICK + "print('one')\nprint('two')\nprint('three')",
    "broken": TAKES_QUICK + "sys.exit('the device is gone')",
    "hanging": TAKES_QUICK + "print('half', flush=True)\nimport threading\nthreading.Event().wait(60)",
    "wanting": TAKES_QUICK + "print('give a folder', file=sys.stderr)\nsys.exit(64)",
    "long": "import sys\nprint('Reach: all of it', *sys.argv[1:])",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    room = tmp_path / "scripts" / "benches"
    room.mkdir(parents=True)
    for package in (room.parent, room):
        (package / "__init__.py").touch()
    shutil.copy(bench.__file__, room.parent)
    shutil.copytree(Path(rig.__file__).parent, room.parent / "rig")
    for name, source in FAKES.items():
        (room / f"{name}.py").write_text(source)
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "scripts.bench", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


def test_each_script_has_its_place_in_the_table(folder: Path) -> None:
    answer = run(folder, "--limit_s=3")
    assert answer.returncode == 70
    assert answer.stderr.strip() == "bench: failed: broken"
    table = answer.stdout
    outcomes = {"good": "ok", "silent": "ok", "broken": "exit 1", "hanging": "stopped after 3 s"}
    for name, outcome in (outcomes | {"wanting": "needs more flags"}).items():
        assert any(line.startswith(name) and line.endswith(outcome) for line in table.splitlines()), table
    assert "    Reach: 3 of 4: MISSED" in table
    assert "warming up" not in table
    assert "    two\n    three\n" in table
    assert "the device is gone" in table
    assert "all of it" not in table
    assert "5 benches in" in table


def test_what_does_not_fit_is_said(folder: Path) -> None:
    answer = run(folder, "--budget_s=0")
    assert answer.returncode == 0
    assert answer.stdout.count("left out: the time is over") == 5


def test_what_is_named_has_no_limit_and_full_is_the_long_version(folder: Path) -> None:
    short = run(folder, "--only=[good,long]", "--budget_s=0", "--limit_s=0")
    assert "MISSED" in short.stdout
    assert "    Reach: all of it\n" in short.stdout
    full = run(folder, "--only=[good]", "--full")
    assert full.returncode == 70
    assert "AssertionError" in full.stdout  # it was not told --quick


def test_an_unknown_bench_is_named(folder: Path) -> None:
    answer = run(folder, "--only=[god]")
    assert answer.returncode == 64
    assert "'god'" in answer.stderr


def test_only_what_needs_lerobot_torch_or_a_gpu_has_no_short_version() -> None:
    assert {name for name, quick in bench.benches().items() if not quick} == ELSEWHERE | {"gpu_check", "house"}
