"""The record of a fault: kept, bounded in number, and refused when it is not one."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge_runtime.errors import ConfigError, OutputError
from edge_runtime.reporting.fault_record import MOST_FILES, FaultRecord, Tick, default_folder
from edge_runtime.tools import replay

RECORD = FaultRecord(
    error="gripper (id 6): no reply 15 times in a row",
    time="2026-01-02T03:04:05.678+01:00",
    control_hz=30.0,
    joints=["pan", "gripper"],
    units=["degrees", "percent"],
    states=[(0.0, "starting"), (1.0, "running"), (9.0, "fault")],
    bus={"joints": {"gripper": {"id": 6, "misses": 15, "errors": "overload", "voltage": 11.9, "temperature": 41}}},
    ticks=[
        Tick(
            time_ns=tick * 33_333_333,
            timestep=tick,
            outcome="failed" if tick == 39 else "picked",
            answered=2 if tick < 25 else 1,
            late_ns=40_000,
            read_ns=1_500_000,
            write_ns=20_000,
            action_age_ns=400_000_000,
            positions=[tick / 10, 50.0],
            goal=[tick / 10 + 1, 50.5],
        )
        for tick in range(40)
    ],
)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    path = RECORD.save(tmp_path / "new" / "folder")
    assert path.name == "fault-2026-01-02T030405.678+0100.json"
    assert FaultRecord.load(path) == RECORD


def test_the_newest_are_kept(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    for second in range(MOST_FILES + 5):
        replace(RECORD, time=f"2026-01-02T03:04:{second:02}").save(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == MOST_FILES + 1
    assert names[0] == "fault-2026-01-02T030405.json"
    assert names[-1] == "other.json"


def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"fault_folder: cannot write into .*file: "):
        RECORD.save(tmp_path / "file")


@pytest.mark.parametrize(
    "content",
    ["", "[1, 2]", '{"format": 2}', json.dumps({"format": 1, "error": "and no more"}), '{"format": 1, "else": 1}'],
)
def test_what_is_no_record_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "fault.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=f"file: .*{path.name}"):
        FaultRecord.load(path)
    with pytest.raises(ConfigError, match="no_such"):
        FaultRecord.load(tmp_path / "no_such")


WRONG: list[tuple[tuple[str | int, ...], Any, str]] = [  # where, what is put there, what is said
    (("ticks",), 7, "ticks: 7 is not a list of objects"),
    (("ticks", 3), 7, "ticks[3]: 7 is not an object"),
    (("ticks", 3, "time_ns"), None, "ticks[3].time_ns: null is not a whole number"),
    (("ticks", 3, "late_ns"), 10**400, "ticks[3].late_ns: 1000"),
    (("ticks", 3, "answered"), True, "ticks[3].answered: true is not a whole number"),
    (("ticks", 3, "outcome"), ["picked"], "ticks[3].outcome: ['picked'] is not text"),
    (("ticks", 3, "goal"), [1.0], "ticks[3].goal: [1.0] is not a list of 2, one for each joint"),
    (("ticks", 3, "positions"), ["a", "b"], "ticks[3].positions[0]: 'a' is not a number"),
    (("states",), [[1]], "states[0]: [1] is not a list of a number and text"),
    (("states", 0), ["running", 0], "states[0][0]: 'running' is not a number"),
    (("bus",), [], "bus: [] is not an object"),
    (("bus", "joints"), [1], "bus.joints: [1] is not an object"),
    (("bus", "joints", "pan"), 1, "bus.joints.pan: 1 is not an object"),
    (("bus", "joints", "gripper", "voltage"), "12", "bus.joints.gripper.voltage: '12' is not a number"),
    (("bus", "joints", "gripper", "errors"), 4, "bus.joints.gripper.errors: 4 is not text"),
    (("joints",), [], "joints: [] is not a list of at least 1 text"),
    (("joints", 0), "\ud800", "joints[0]: "),
    (("units",), ["degrees"], "units: ['degrees'] is not a list of 2, one for each joint"),
    (("control_hz",), "30", "control_hz: '30' is not a number"),
    (("error",), 5, "error: 5 is not text"),
    (("time",), None, "time: null is not text"),
]


@pytest.mark.parametrize(("where", "value", "said"), WRONG, ids=str)
def test_a_record_that_is_wrong_inside_names_the_field(
    tmp_path: Path, where: tuple[str | int, ...], value: Any, said: str
) -> None:
    content = json.loads(RECORD.save(tmp_path).read_text())
    place = content
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = value
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError) as caught:
        FaultRecord.load(path)
    assert str(caught.value).startswith(f"file: {path} is not the record of a fault: {said}")
    assert len(str(caught.value)) < 300


def test_what_is_not_finite_is_shown_and_drawn(tmp_path: Path) -> None:
    ticks = [replace(tick, goal=[float("nan"), float("inf")]) for tick in RECORD.ticks]
    path = replace(RECORD, ticks=ticks, error="a $strange$ \x1b[31m $\\error$ \ud800").save(tmp_path)
    record = FaultRecord.load(path)
    assert record.error.isprintable()
    assert "nan" in replay.text(record)
    if importlib.util.find_spec("matplotlib"):
        assert replay.plot(record, tmp_path / "fault.png").stat().st_size > 0
        os.mkfifo(tmp_path / "pipe.png")
        with pytest.raises(OutputError, match=r"plot: .*pipe\.png is neither a file nor a device"):
            replay.plot(record, tmp_path / "pipe.png")


def test_the_folder_of_a_service_and_of_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", "/home/me/state")
    assert default_folder() == Path("/home/me/state/edge-runtime")
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/edge-runtime:/else")
    assert default_folder() == Path("/var/lib/edge-runtime")


def test_the_page_shows_joints_runs_and_the_last_ticks() -> None:
    lines = replay.text(RECORD).splitlines()
    assert lines[0].endswith(RECORD.error)
    assert lines[1] == "states: starting (0.0 s) -> running (1.0 s) -> fault (9.0 s)"
    assert lines[5].split() == ["gripper", "50.5", "50.0", "11.9", "41", "15", "overload"]
    runs = [line for line in lines if " tick" in line and ".." in line]
    assert [run.split("  ", 1)[-1].split(maxsplit=5)[-1] for run in runs] == [
        "picked, timesteps 0..24",
        "picked, timesteps 25..38, 1 of 2 joints silent",
        "failed, timesteps 39..39, 1 of 2 joints silent",
    ]
    assert lines[-1].split()[:4] == ["0.000", "39", "failed", "1"]
    assert max(map(len, lines)) <= 100


def test_what_changes_every_few_ticks_is_one_line() -> None:
    early = enumerate(RECORD.ticks[:25])
    ticks = [replace(tick, outcome="picked" if index % 3 else "starved") for index, tick in early]
    page = replay.text(replace(RECORD, ticks=[*RECORD.ticks[:10], *ticks, RECORD.ticks[-1]]))
    assert max(map(len, page.splitlines())) <= replay.WIDTH
    lines = re.sub(r"\n {30,}", " ", page).splitlines()  # a line that was too long goes on in the next
    runs = [line.partition("  ")[2].split("  ")[-1] for line in lines if " tick" in line and ".." in line]
    assert runs == [
        "picked, timesteps 0..9",
        "starved 9, picked 16, failed 1, timesteps 0..39, up to 1 of 2 joints silent",
    ]


def test_a_fault_before_the_first_tick_has_a_page_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = replace(RECORD, ticks=[]).save(tmp_path)
    assert replay.main([str(path)]) == 0
    assert "gripper" in capsys.readouterr().out
    assert not path.with_suffix(".png").exists()
