"""This computer: room to write, and what the loop's thread is given."""

from __future__ import annotations

import os
from collections import namedtuple
from pathlib import Path

import pytest

from edge_runtime.config import NoRobotConfig, StartConfig
from edge_runtime.errors import AccessError
from edge_runtime.tools.doctor import machine
from tests.edge_runtime.tools.doctor.findings import Findings

Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize(
    ("free", "state", "code"), [(2 << 30, "ok", 0), (1 << 29, "warning", 0), (1 << 20, "failed", 73)]
)
def test_room_where_a_run_writes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, state: str, code: int
) -> None:
    looked: list[Path] = []
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: looked.append(path) or Usage(1 << 40, 0, free))
    finding = machine.disk(StartConfig(robot=NoRobotConfig(), fault_folder=tmp_path / "not" / "yet"))
    assert (finding.state, finding.exit_code) == (state, code)
    assert looked == [tmp_path]  # the nearest that is there


def look(**settings: object) -> Findings:
    return Findings(machine.realtime(StartConfig(robot=NoRobotConfig(), **settings)))


def test_a_second_of_waking_up(monkeypatch: pytest.MonkeyPatch) -> None:
    affinity = os.sched_getaffinity(0)
    found = look(realtime="off", cpu_affinity=[min(affinity)])
    assert found.about("real time").state == "skipped"
    assert found.about("jitter").state in ("ok", "warning")  # the host's own
    assert os.sched_getaffinity(0) == affinity
    monkeypatch.setattr(machine, "JITTER_S", 0.1)
    monkeypatch.setattr(machine, "LATE_PART", 0.0)
    assert look(realtime="off").about("jitter").mend


def test_a_processor_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "JITTER_S", 0.05)
    finding = look(realtime="off", cpu_affinity=[1000]).about("real time")
    assert (finding.state, finding.exit_code) == ("failed", 78)
    assert finding.mend == f"the processors here are {sorted(os.sched_getaffinity(0))}"


@pytest.mark.parametrize(("realtime", "state"), [("enforce", "failed"), ("try", "warning")])
def test_real_time_that_is_not_permitted(monkeypatch: pytest.MonkeyPatch, realtime: str, state: str) -> None:
    class Refused(machine.ActuatorLoop):
        """What the loop says to an account without the right; root, who may run this, has it."""

        realtime_outcome = "no SCHED_FIFO 80: Operation not permitted"

        def run(self) -> None:
            if realtime == "enforce":
                raise AccessError("realtime: enforce, but SCHED_FIFO 80 was refused (Operation not permitted)")

    monkeypatch.setattr(machine, "ActuatorLoop", Refused)
    finding = look(realtime=realtime).about("real time")
    assert (finding.state, finding.exit_code) == (state, 77 if state == "failed" else 0)
    assert "rtprio 99" in finding.mend
