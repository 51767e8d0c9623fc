"""`make bench`: every script that has a short version runs, and one that fails or hangs does not hide the others."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import bench, benches

from .test_readme import ELSEWHERE

TAKES_QUICK = "import sys\nassert sys.argv[1:] == ['--quick']\n"
FAKES = {
    "good": TAKES_QUICK + "print('warming up')\nprint('Reach: 3 of 4: missed')\nprint('done')",
    "silent": TAKES_QUICK + "print('one')\nprint('two')\nprint('three')",
    "broken": TAKES_QUICK + "sys.exit('the device is gone')",
    "hanging": TAKES_QUICK + "print('half', flush=True)\nimport threading\nthreading.Event().wait(60)",
    "wanting": TAKES_QUICK + "print('give a folder', file=sys.stderr)\nsys.exit(2)",
    "long": "print('has no short version')",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    room = tmp_path / "scripts" / "benches"
    room.mkdir(parents=True)
    for package in (room.parent, room):
        (package / "__init__.py").touch()
    shutil.copy(bench.__file__, room.parent)
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
    answer = run(folder, "--quick", "--limit_s=3")
    assert answer.returncode == 70
    assert answer.stderr.strip() == "bench: failed: broken"
    table = answer.stdout
    outcomes = {"good": "ok", "silent": "ok", "broken": "exit 1", "hanging": "stopped after 3 s"}
    for name, outcome in (outcomes | {"wanting": "needs more than --quick"}).items():
        assert any(line.startswith(name) and line.endswith(outcome) for line in table.splitlines()), table
    assert "    Reach: 3 of 4: missed" in table
    assert "warming up" not in table
    assert "    two\n    three\n" in table
    assert "the device is gone" in table
    assert "long" not in table
    assert "5 scripts in" in table


def test_what_does_not_fit_is_said(folder: Path) -> None:
    answer = run(folder, "--quick", "--budget_s=0", "--only=[good]")
    assert answer.returncode == 0
    assert "left out: the time is over" in answer.stdout


def test_an_unknown_script_is_named(folder: Path) -> None:
    answer = run(folder, "--quick", "--only=[god]")
    assert answer.returncode == 64
    assert "'god'" in answer.stderr


def test_only_what_needs_lerobot_or_torch_is_left_out() -> None:
    room = Path(benches.__file__).parent
    names = {path.stem for path in room.glob("[!_]*.py")} | {path.parent.name for path in room.glob("*/__main__.py")}
    assert names - set(bench.scripts()) == ELSEWHERE | {"gpu_check", "house"}
