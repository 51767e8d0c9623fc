"""`scripts.benches.gpu_check` without a GPU: skipped at once, and its steps work on the CPU."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from edge_runtime.errors import ModelError
from edge_runtime.wire.messages import Floats
from policy_server import bundle
from policy_server.bundle import STATE
from policy_server.engines import Batch
from scripts.benches.gpu_check import report


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "scripts.benches.gpu_check", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
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


class Answers:
    """An engine whose every action is `number`."""

    provider = "CPUExecutionProvider"

    def __init__(self, number: float) -> None:
        self._number = number

    def infer(self, batch: Batch) -> Floats:
        return np.full((len(batch[STATE]), 4, 3), self._number, np.float32)

    def warm_up(self, batch_sizes: Sequence[int], progress: Callable[[str], None]) -> None: ...


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_an_action_that_is_no_number_is_no_small_difference(tiny: Path, number: float) -> None:
    loaded = bundle.load(tiny)
    assert report.difference(loaded, Answers(1.5), Answers(1.0), 4) == 0.5
    with pytest.raises(ModelError, match="not finite"):
        report.difference(loaded, Answers(number), Answers(1.0), 4)
