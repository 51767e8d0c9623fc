"""`scripts/gpu_check.py` without a GPU: skipped at once, and its steps work on the CPU."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check.py"
pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="the scripts are not beside these tests")


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there may be a GPU")
def test_without_a_gpu_it_is_skipped_at_once() -> None:
    began_s = time.monotonic()
    done = check()
    assert (done.returncode, done.stderr) == (77, "")
    assert done.stdout.startswith("skipped: no GPU here (")
    assert time.monotonic() - began_s < 5


def test_its_steps_work_on_the_cpu() -> None:
    done = check("act_so101_pick_place", "--dry_run=cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"GB/s, .* TFLOP/s in fp32, measured", done.stdout)
    assert "differs by 0 (at most 0.01)" in done.stdout
    assert len(re.findall(r"batch [1248]: p50 .* floor .* MB, .* GFLOP", done.stdout)) == 4
