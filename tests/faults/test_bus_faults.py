"""The bus and its servos fail under a running arm: what the arm does, from the bus's own log, and how it comes back."""

from __future__ import annotations

import json
import re
from pathlib import Path
from time import monotonic as now
from time import monotonic_ns as now_ns

import pytest

from edge_runtime.tools.replay import main as replay
from scripts.rig.program import Edge
from scripts.rig.usage import cpu_s
from tests.faults.bench import IDS, Bench, writes


def test_unplug_and_replug(rig: Bench, edge: Edge) -> None:
    """Fault with the next tick, nothing written to what is gone, the safe start when it is back, and a new plan."""
    observations = len(rig.server.hellos)
    rig.bus.inject({"fault": "unplug"})
    gone_ns = now_ns()
    edge.wait_for("running -> fault")
    line = edge.wait_for("is the cable out? (its last ticks: edge-runtime replay-fault ")
    record = json.loads(Path(line.split()[-1].rstrip(")")).read_text())
    assert len([tick for tick in record["ticks"] if tick["time_ns"] > gone_ns]) <= 1
    edge.wait_for("the arm is waited for: robot.port:")
    used = cpu_s(edge.process.pid)
    began = now()
    with pytest.raises(TimeoutError):
        rig.bus.log.wait_for(lambda entry: entry.time_s > began, 1.5)
    assert cpu_s(edge.process.pid) - used <= 0.02 * 1.5 + 0.02  # 2 %, and two ticks of the kernel's count
    back = now()
    rig.bus.inject({"fault": "replug"})
    edge.wait_for("fault -> starting")
    edge.wait_for("starting -> running")
    rig.wait_for_goals(3)
    rig.assert_safe_start(back)
    assert rig.torque == [1] * 6
    assert len(rig.server.hellos) == observations  # the stream lived on


def test_one_silent_servo_is_named_and_the_others_go_on(rig: Bench, edge: Edge) -> None:
    began = now()
    with rig.fault({"fault": "silent", "ids": [3]}):
        edge.wait_for("elbow_flex (id 3) does not answer")
    wait_until_well(edge, "elbow_flex (id 3)")
    rig.wait_for_goals(1)
    moved = rig.goals(began)
    assert len({goals[1] for goals in moved}) > 2
    assert all(set(goals) == IDS for goals in moved)


def test_servos_silent_for_good_stop_the_arm_until_they_answer(rig: Bench, edge: Edge) -> None:
    with rig.fault({"fault": "silent", "ids": [3, 5]}):
        edge.wait_for("running -> fault")
        edge.wait_for("elbow_flex (id 3), wrist_roll (id 5): no reply 15 times in a row")
        assert rig.torque == [0] * 6  # also of the silent ones: they hear
        edge.wait_for("the arm is waited for: ")
    back = now()
    edge.wait_for("starting -> running")
    rig.wait_for_goals(2)
    rig.assert_safe_start(back)


def test_servos_without_supply_while_the_adapter_lives(rig: Bench, edge: Edge) -> None:
    with rig.fault({"fault": "power", "on": False}):
        edge.wait_for("running -> fault")
        edge.wait_for("is the 12 V supply on?")
    back = now()
    edge.wait_for("starting -> running")
    rig.wait_for_goals(2)
    rig.assert_safe_start(back)


def test_a_servo_that_restarts_is_limp_and_the_arm_starts_anew(rig: Bench, edge: Edge) -> None:
    began = now()
    rig.bus.inject({"fault": "reboot", "ids": [2]})
    edge.wait_for("running -> fault")
    edge.wait_for("shoulder_lift (id 2) has lost its torque: it restarted")
    assert rig.torque == [0] * 6
    edge.wait_for("starting -> running")
    rig.wait_for_goals(2)
    rig.assert_safe_start(began)
    assert rig.torque == [1] * 6


@pytest.mark.parametrize("fault", ["corrupt", "truncate", "junk", "foreign", "late", "bytewise", "order"])
def test_a_noisy_line_is_lived_with(rig: Bench, edge: Edge, fault: str) -> None:
    lines = len(edge.lines)
    began = now()
    with rig.fault({"fault": fault, "rate": 0.1}):
        rig.wait_for_goals(9)
        while min(len({goals[servo] for goals in rig.goals(began)}) for servo in (1, 6)) <= 3:  # a swing turns slowly
            assert now() < began + 20
            rig.wait_for_goals(1)
    assert not any("-> fault" in line for line in edge.lines[lines:])


def test_overload_is_told_and_the_position_used(rig: Bench, edge: Edge) -> None:
    with rig.fault({"fault": "flags", "ids": [6], "bits": "overload"}):
        edge.wait_for("gripper (id 6) reports overload")
        rig.wait_for_goals(3)
    wait_until_well(edge, "gripper (id 6)")


def test_a_hot_servo_is_stopped_softly_and_starts_when_it_is_cool(rig: Bench, edge: Edge) -> None:
    began = now()
    heat = {"fault": "register", "ids": [2], "name": "Present_Temperature"}
    rig.bus.inject({**heat, "value": 68})
    edge.wait_for("running -> fault")
    edge.wait_for("shoulder_lift (id 2) is 68 °C hot, the limit is 68: let it cool down")
    ramp = [entry for entry in rig.bus.log if entry.time_s > began and writes(entry, "Torque_Limit")]
    assert len(ramp) >= 11
    assert rig.torque == [0] * 6
    edge.wait_for("shoulder_lift (id 2) is 68 °C hot: robot.max_temperature lets it start at 60")
    rig.bus.inject({**heat, "value": 45})
    edge.wait_for("starting -> running")


def wait_until_well(edge: Edge, servo: str) -> None:
    """Until the line of `servo`, which may name others too."""
    while servo not in (line := edge.wait_for(" well again")) and "all servos" not in line:
        pass


def test_what_the_file_of_a_fault_shows(rig: Bench, edge: Edge, capsys: pytest.CaptureFixture[str]) -> None:
    files = sorted((rig.folder / "faults").glob("fault-*.json"))
    assert len(files) >= 5
    record = json.loads(files[0].read_text())
    assert record["error"].startswith("the port is gone")
    assert 2 < len(record["ticks"]) <= 300
    assert replay([str(files[0])]) == 0
    text = capsys.readouterr().out.replace(str(rig.folder), "")
    assert "is the cable out?" in text
    assert re.search(r"failed( 1)?,\s+timesteps", text)  # alone, or with the few ticks before it
    assert max(map(len, text.splitlines()[2:])) <= 100
    assert files[0].with_suffix(".png").stat().st_size > 10_000
