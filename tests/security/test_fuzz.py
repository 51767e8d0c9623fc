"""The corpora hold, a short run finds nothing, and the fuzzer would find what there is to find."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.fuzz import TURN
from scripts.rig.fuzzing import fuzzer as fuzzing
from scripts.rig.fuzzing.fuzzer import Fuzzer
from scripts.rig.fuzzing.targets import TARGETS, Target

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_holds(name: str) -> None:
    fuzzer = Fuzzer(TARGETS[name], seed=1)
    fuzzer.run(len(fuzzer.pool))
    assert sorted(fuzzer.target.folder.iterdir())
    assert not fuzzer.defects
    assert all(fuzzer.outcomes), "each input has an outcome"


def test_a_short_run_finds_nothing_and_counts() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "scripts.fuzz", "--turns=5", "--workers=1", "--seed=11"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    counted = {name: int(count.replace(",", "")) for name, count in re.findall(r"^(\w+) +([\d,]+) ", run.stdout, re.M)}
    assert counted.keys() == TARGETS.keys()
    assert min(counted.values()) >= TURN  # each had its turn
    assert run.stdout.splitlines()[-1] == f"{sum(counted.values())} inputs, 0 crashes, 0 hangs"


def stumbles(data: bytes) -> str:
    """Over an 0xFF in the third place, which is one step from the seed."""
    if data[2:3] == b"\xff":
        raise ZeroDivisionError("third")
    return "fine"


def loops(data: bytes) -> str:
    while data[:1] != b"a":
        pass
    return "fine"


def dawdles(data: bytes) -> str:
    end_s = time.thread_time() + 0.002
    while time.thread_time() < end_s:
        pass
    return "fine"


@pytest.mark.parametrize(
    ("run", "what"),
    [
        (stumbles, "ZeroDivisionError: third"),
        (loops, "Hang: longer than 0.05 s"),
        (dawdles, "Slow: 2 ms of processor time, 1 are allowed"),
    ],
)
def test_what_is_planted_is_found(run: Callable[[bytes], str], what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzing, "HANG_S", 0.05)
    monkeypatch.setattr(fuzzing, "SLOW_S", 0.001)
    fuzzer = Fuzzer(Target("planted", run, lambda: [b"abcd"]), seed=1)
    for _ in range(50):
        if not fuzzer.defects:
            fuzzer.run(20)
    assert fuzzer.defects[0].what == what


def test_the_same_seed_gives_the_same_inputs() -> None:
    def inputs(seed: int) -> list[bytes]:
        seen: list[bytes] = []
        Fuzzer(TARGETS["status"], seed, seen.append).run(200)
        return seen

    assert inputs(4) == inputs(4)
    assert inputs(4) != inputs(5)
