"""`make bench`: every script that has a short version runs, and one that fails or hangs does not hide the others."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .test_readme import ELSEWHERE

SCRIPTS = Path(__file__).parents[1] / "scripts"
TAKES_QUICK = "import sys\nassert sys.argv[1:] == ['--quick']\n"
FAKES = {
    "bench_good": TAKES_QUICK + "print('warming up')\nprint('Reach: 3 of 4: missed')\nprint('done')",
    "bench_silent": TAKES_QUICK + "print('one')\nprint('two')\nprint('three')",
    "bench_broken": TAKES_QUICK + "sys.exit('the device is gone')",
    "bench_hanging": TAKES_QUICK + "print('half', flush=True)\nimport threading\nthreading.Event().wait(60)",
    "bench_wanting": TAKES_QUICK + "print('give a folder', file=sys.stderr)\nsys.exit(2)",
    "bench_long": "print('has no short version')",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(SCRIPTS / "bench.py", tmp_path)
    for name, source in FAKES.items():
        (tmp_path / f"{name}.py").write_text(source)
    return tmp_path


def bench(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(folder / "bench.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


def test_each_script_has_its_place_in_the_table(folder: Path) -> None:
    answer = bench(folder, "--quick", "--limit_s=3")
    assert answer.returncode == 70
    assert answer.stderr.strip() == "bench.py: failed: bench_broken"
    table = answer.stdout
    outcomes = {"good": "ok", "silent": "ok", "broken": "exit 1", "hanging": "stopped after 3 s"}
    for name, outcome in (outcomes | {"wanting": "needs more than --quick"}).items():
        assert any(line.startswith(f"bench_{name}") and line.endswith(outcome) for line in table.splitlines()), table
    assert "    Reach: 3 of 4: missed" in table
    assert "warming up" not in table
    assert "    two\n    three\n" in table
    assert "the device is gone" in table
    assert "bench_long" not in table
    assert "5 scripts in" in table


def test_what_does_not_fit_is_said(folder: Path) -> None:
    answer = bench(folder, "--quick", "--budget_s=0", "--only=[bench_good]")
    assert answer.returncode == 0
    assert "left out: the time is over" in answer.stdout


def test_an_unknown_script_is_named(folder: Path) -> None:
    answer = bench(folder, "--quick", "--only=[bench_god]")
    assert answer.returncode == 64
    assert "bench_god" in answer.stderr


def test_only_what_needs_lerobot_or_torch_is_left_out() -> None:
    assert {path.stem for path in SCRIPTS.glob("bench_*.py") if "quick" not in path.read_text()} == ELSEWHERE
