"""The bench beside LeRobot: it is skipped without one, and what it computes from diaries and puts into its table."""

from __future__ import annotations

import itertools
import math
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from scripts.benches.vs_lerobot import diary as diaries
from scripts.benches.vs_lerobot import measures, scenarios, sides, table
from scripts.benches.vs_lerobot.line import Line

PERIOD_NS = 1e9 / 30


def diary(woke_ns: object, timestep: object, goal: float = 0.0) -> object:
    woke = np.asarray(woke_ns, np.int64)
    steps = np.asarray(timestep, np.int64)
    return diaries.Diary(woke, woke + 1_000_000, steps, np.full(len(woke), 9), np.full((len(woke), 6), goal), {})


def test_without_lerobot_it_is_skipped_and_says_so() -> None:
    command = [sys.executable, "-m", "scripts.benches.vs_lerobot"]
    for flag in ([], ["--lerobot_python=/nowhere/python"], [f"--lerobot_python={sys.executable}"]):
        done = subprocess.run([*command, *flag], capture_output=True, text=True, timeout=30)
        assert done.returncode == 77, done.stderr
        assert done.stdout.startswith("skipped: ")
        assert done.stdout.count("\n") == 1


def test_lateness_is_counted_from_an_absolute_grid() -> None:
    turns = np.arange(301)
    exact = measures.Pace.of(diary(5e9 + turns * PERIOD_NS, turns))
    assert exact.rate_hz == pytest.approx(30)
    assert exact.late_p99 < 1e-3
    assert exact.jitter_p99 < 1e-3
    slow = measures.Pace.of(diary(5e9 + turns * (PERIOD_NS + 1e6), turns))
    assert slow.late_p99 == pytest.approx(297, abs=0.1)  # a millisecond more with each turn
    assert slow.jitter_p99 == pytest.approx(1, abs=1e-3)
    once = turns * PERIOD_NS
    once[0] += 7e6
    assert measures.Pace.of(diary(once, turns)).late_p50 < 1e-3  # a late first turn moves no deadline


def test_starved_and_repeated_steps() -> None:
    steps = [0, 1, -1, 2, 2, 1, 3, -1]
    found = diary(np.arange(8) * PERIOD_NS, steps)
    assert measures.Pace.of(found).starved == pytest.approx(25)
    assert measures.repeated(found) == 2
    assert measures.recovery_s(found, 4.5 * PERIOD_NS) == pytest.approx(0.5 / 30)
    assert measures.recovery_s(found, 7 * PERIOD_NS) == math.inf


def test_a_step_belongs_to_the_arm_whose_chunk_is_nearer() -> None:
    own, other = np.zeros((50, 6)), np.full((50, 6), 20.0)
    turns = np.arange(10)
    assert measures.foreign(diary(turns, turns, goal=3.0), own, other) == 0
    assert measures.foreign(diary(turns, turns, goal=17.0), own, other) == 100


def test_the_table_has_medians_ranges_ratios_and_a_verdict() -> None:
    rows = {
        "late": table.Row("lateness", "ms", times_less=50),
        "merge": table.Row("merge", "µs", times_less=300),
        "twice": table.Row("twice", exactly=0.0, digits=0),
        "recovery": table.Row("recovery", "s"),
        "change": table.Row("change", at_most=1.0),
        "absent": table.Row("not measured"),
    }
    found = {
        ("late", "theirs"): [90.0, 100.0, 120.0],
        ("late", "ours"): [1.0, 2.0, 3.0],
        ("late", "plain"): [4.0],
        ("merge", "theirs"): [299.0],
        ("merge", "ours"): [1.0],
        ("twice", "theirs"): [0.0, 3.0, 5.0],
        ("twice", "ours"): [0.0, 0.0, 1.0],
        ("recovery", "theirs"): [math.inf],
        ("recovery", "ours"): [0.5],
        ("change", "ours"): [0.63],
    }
    lines = table.lines(rows, found)
    assert table.markdown(lines).splitlines()[2:] == [
        "| lateness [ms] | 100.00 (90.00–120.00) | 2.00 (1.00–3.00) | 4.00 | 50 | 50 times less | met |",
        "| merge [µs] | 299.00 | 1.00 |  | 299 | 300 times less | MISSED |",
        "| twice | 3 (0–5) | 0 (0–1) |  |  | 0 | MISSED |",
        "| recovery [s] | never | 0.50 |  |  |  |  |",
        "| change |  | 0.63 |  |  | ≤ 1 | met |",
    ]
    assert len(table.text(lines).splitlines()) == 6
    assert [line.as_dict()["met"] for line in lines] == [True, False, False, None, True]


def test_what_was_measured_in_another_way_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = itertools.count(1)
    monkeypatch.setattr(scenarios, "SCENARIOS", {"counted": lambda setting: {("runs", "ours"): float(next(runs))}})
    code, bundle = tmp_path / "code", tmp_path / "bundle"
    for file in (code / "loop.py", bundle / "manifest.json"):
        file.parent.mkdir()
        file.write_text("one")
    monkeypatch.setattr(scenarios, "CODE", [code])

    def run(*, latency_s: float = 0.2, seconds: float = 10.0) -> float:
        both = sides.LeRobot(Path("python"), Path("checkpoint"), latency_s), sides.Edge(bundle, latency_s)
        place = sides.Place(tmp_path, tmp_path, frozenset({0}), frozenset({1}))
        setting = scenarios.Setting(*both, place, seconds, (np.zeros((50, 6)), np.zeros((50, 6))))
        (found,) = scenarios.measure(setting, ["counted"], 1, lambda what: None)["runs", "ours"]
        return float(found)

    assert [run(), run(), run(latency_s=0.3), run(seconds=5.0), run()] == [1, 1, 2, 3, 1]
    (bundle / "manifest.json").write_text("two")
    assert run() == 4
    (code / "loop.py").write_text("two")
    assert run() == 5


def test_a_line_has_its_speed_and_counts() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as far,
        Line(far.getsockname()[1], bytes_per_s=1e6) as line,
        socket.create_connection(("127.0.0.1", line.port), timeout=5) as near,
        far.accept()[0] as end,
    ):
        began_s = time.monotonic()
        sender = threading.Thread(target=near.sendall, args=(bytes(200_000),))
        sender.start()
        left = 200_000
        while left:
            left -= len(end.recv(1 << 16))
        sender.join()
        assert time.monotonic() - began_s >= 0.19
        assert (line.up, line.down) == (200_000, 0)
