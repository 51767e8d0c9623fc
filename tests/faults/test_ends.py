"""Every way out leaves the arm as the stop policy says: signals, kills, pauses, full disks, another arm."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import monotonic as now
from typing import Any

import pytest

from edge_runtime.acting.supervisor.client import ANSWER_S
from edge_runtime.virtual_arm.frame_log import Entry
from scripts.rig.proxy import Link
from tests.faults.bench import TICKS_PER_UNIT, Bench, writes


def is_first_step_to_limp(entry: Entry) -> bool:
    return writes(entry, "Torque_Limit") and entry.values[1]["Torque_Limit"] == 900


def supervisors_of(pid: int) -> list[str]:
    children = " ".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")).split()
    return [child for child in children if "supervisor" in Path(f"/proc/{child}/cmdline").read_text()]


def wait_for_end(pid: str) -> None:
    """Of a process that is not our child."""
    with open(os.pidfd_open(int(pid)), "rb") as process:
        assert select.select([process], [], [], 10)[0]


def test_sigkill_is_answered_by_the_supervisor(rig: Bench) -> None:
    with rig.running() as edge:
        (supervisor,) = supervisors_of(edge.process.pid)
        rig.log.clear()
        edge.process.kill()
        first = rig.log.wait_for(is_first_step_to_limp, 10)
        wait_for_end(supervisor)
        edge.wait()
        assert "the runtime is gone: limp" in edge.lines[-1]
    assert rig.torque == [0] * 6
    assert rig.goals(first.time_s) == []


def test_a_limp_that_sigkill_cuts_short_goes_on_with_the_force_that_is_left(rig: Bench) -> None:
    """SIGTERM, and SIGKILL while the arm is being lowered: the supervisor lowers it further, and does not raise it."""
    with rig.running() as edge:
        (supervisor,) = supervisors_of(edge.process.pid)
        rig.log.clear()
        edge.process.terminate()
        rig.log.wait_for(lambda entry: writes(entry, "Torque_Limit") and entry.values[1]["Torque_Limit"] <= 600, 10)
        edge.process.kill()
        wait_for_end(supervisor)
        edge.wait()
    assert rig.torque == [0] * 6
    entries = list(rig.log)
    off = next(index for index, entry in enumerate(entries) if writes(entry, "Torque_Enable", 0))
    force = [entry.values[1]["Torque_Limit"] for entry in entries[:off] if writes(entry, "Torque_Limit")]
    assert force[-1] == 0
    assert force == sorted(force, reverse=True)


def test_hold_needs_no_supervisor_and_the_loop_stays_on_its_processor(rig: Bench) -> None:
    with rig.running("--robot.stop_policy=hold", "--cpu_affinity=[0]") as edge:
        assert supervisors_of(edge.process.pid) == []
        tasks = Path(f"/proc/{edge.process.pid}/task").glob("*/status")
        allowed = [re.findall("Cpus_allowed_list:\t(.*)", task.read_text())[0] for task in tasks]
        assert allowed.count("0") == 1 or os.cpu_count() == 1
        edge.process.kill()
        edge.wait()
    assert rig.torque == [1] * 6


def test_a_runtime_that_was_paused_never_shares_the_bus(rig: Bench) -> None:
    """A moment costs nothing; after 0.3 s the arm is the supervisor's, and the runtime starts anew when it wakes."""
    with rig.running() as edge:
        since = now()
        edge.process.send_signal(signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            rig.log.wait_for(lambda entry: entry.time_s > since + 0.03, 0.06)
        edge.process.send_signal(signal.SIGCONT)
        rig.wait_for_goals(3)
        rig.log.clear()
        since = now()
        edge.process.send_signal(signal.SIGSTOP)
        first = rig.log.wait_for(is_first_step_to_limp, 10)
        assert first.time_s - since > 0.2
        edge.process.send_signal(signal.SIGCONT)
        edge.wait_for("running -> fault")
        edge.wait_for("the supervisor took the arm: no tick had come in time")
        woken = rig.goals(first.time_s)
        edge.wait_for("starting -> running")
        assert woken == []
        rig.wait_for_goals(2)
        rig.assert_safe_start(since)
        assert len(supervisors_of(edge.process.pid)) == 1  # another
        rig.bus.inject({"fault": "flags", "ids": [3], "bits": "overload"})
        assert edge.end() == 0, edge.text
    assert rig.torque == [0] * 6
    rig.bus.inject({"fault": "clear"})
    report = json.loads((rig.folder / "summary.json").read_text())
    assert [state for _, state in report["states"]][-5:] == ["running", "fault", "starting", "running", "stopping"]
    assert len(report["faults"]) == 1
    assert report["loop"]["missed"] == report["loop"]["missed_by_stage"]["bus"] + report["loop"]["host_stalls"]


def test_a_signal_stops_the_arm_while_the_scene_is_still_waited_for(rig: Bench) -> None:
    """Whoever places it never answers; the arm comes to rest all the same, and only then the question is given up."""
    with socket.create_server(("127.0.0.1", 0)) as judge:
        url = f"http://127.0.0.1:{judge.getsockname()[1]}/"
        rig.log.clear()
        with rig.start("--episodes=1", f"--reset_url={url}") as edge:
            asked, _ = judge.accept()
            rig.log.wait_for(lambda entry: writes(entry, "Torque_Enable", 1), 10)
            rig.log.clear()
            edge.process.send_signal(signal.SIGTERM)
            rig.log.wait_for(lambda entry: writes(entry, "Torque_Enable", 0), 10)
            asked.close()
            assert edge.wait() == 0, edge.text


def test_a_second_signal_means_limp_at_once(rig: Bench) -> None:
    with rig.running("--robot.stop_policy=park", "--robot.rest_pose={shoulder_pan: 100}") as edge:
        edge.process.send_signal(signal.SIGINT)
        edge.wait_for("-> stopping")
        rig.wait_for_goals(3)
        edge.process.send_signal(signal.SIGINT)
        assert edge.wait() == 0, edge.text
    assert rig.torque == [0] * 6
    assert rig.goals()[-1][1] < 2048 + 90 * TICKS_PER_UNIT[1]  # let go of on its way to 100


def test_a_terminal_that_is_closed_ends_the_run_in_good_order(rig: Bench) -> None:
    """SIGHUP; whatever is still said there, by the status line, the log and the summary, is lost and no error more."""
    window, terminal = os.openpty()
    name = os.ttyname(terminal)
    command = [sys.executable, "-m", "edge_runtime", "start", *rig.flags]
    shell = ["sh", "-c", 'tty=$1; shift; exec "$@" <>"$tty" >&0 2>&0', "sh", name, *command]
    with subprocess.Popen(shell, start_new_session=True) as edge:  # the first terminal it opens is its own
        os.close(terminal)
        rig.wait_for_goals(3)
        os.close(window)
        assert edge.wait(30) == 73
    assert rig.torque == [0] * 6
    assert json.loads((rig.folder / "summary.json").read_text())["states"][-1][1] == "stopping"


@pytest.fixture
def clogged(rig: Bench) -> Iterator[subprocess.Popen[bytes]]:
    """A runtime whose stderr is a pipe that nobody reads, and that is full."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    os.set_blocking(writer, True)
    rig.log.clear()
    command = [sys.executable, "-m", "edge_runtime", "start", *rig.flags]
    with subprocess.Popen(command, stderr=writer, stdout=subprocess.DEVNULL) as edge:
        try:
            rig.wait_for_goals(3)
            yield edge
        finally:
            edge.kill()
            os.close(reader)
            os.close(writer)


def test_a_log_that_nobody_reads_keeps_no_signal_from_the_arm(rig: Bench, clogged: subprocess.Popen[bytes]) -> None:
    clogged.terminate()
    assert clogged.wait(30) == 0
    assert rig.torque == [0] * 6


def test_a_log_that_nobody_reads_keeps_no_supervisor_from_the_arm(rig: Bench, clogged: subprocess.Popen[bytes]) -> None:
    rig.log.clear()
    clogged.kill()
    rig.log.wait_for(lambda entry: writes(entry, "Torque_Enable", 0), 10)
    assert rig.torque == [0] * 6


def test_a_stopped_supervisor_keeps_nobody_waiting(rig: Bench) -> None:
    with rig.running() as edge:
        (supervisor,) = supervisors_of(edge.process.pid)
        os.kill(int(supervisor), signal.SIGSTOP)
        began = now()
        assert edge.end() == 0, edge.text
        assert now() - began < ANSWER_S  # what a supervisor that starts is given
    assert rig.torque == [0] * 6


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_the_caller_closed_are_no_reason_not_to_run(rig: Bench, closed: str) -> None:
    command = [sys.executable, "-m", "edge_runtime", "start", *rig.flags]
    rig.log.clear()
    with subprocess.Popen(["sh", "-c", f'exec "$@" {closed}', "sh", *command], stdout=subprocess.DEVNULL) as edge:
        rig.wait_for_goals(3)
        edge.terminate()
        assert edge.wait(30) == 0
    assert rig.torque == [0] * 6


def test_a_function_of_the_users_that_fails_is_told_before_torque_is_on(rig: Bench) -> None:
    (rig.folder / "mine.py").write_text("def blend(old, new):\n    raise ValueError('no such weight')\n")
    rig.log.clear()
    with rig.start("--aggregate_fn_name=mine:blend") as edge:
        assert edge.wait() == 78
        assert edge.lines[-1].endswith("aggregate_fn_name: 'mine:blend' failed: ValueError: no such weight")
    assert not any(writes(entry, "Torque_Enable", 1) for entry in rig.log)


def test_a_full_disk_is_told_when_the_arm_is_at_rest(rig: Bench) -> None:
    with rig.running("--summary=/dev/full") as edge:
        assert edge.end() == 73, edge.text
        assert "summary: cannot write /dev/full: No space left on device" in edge.lines[-1]
    assert rig.torque == [0] * 6


def test_without_reconnect_a_lost_port_ends_the_run_and_stays_the_reason(rig: Bench) -> None:
    """Neither the record of the fault nor the summary can be written."""
    records = rig.folder / "records"
    full = ("--summary=/dev/full", f"--fault_folder={records}")
    with rig.fault(), rig.running("--robot.reconnect=false", *full) as edge:
        records.rmdir()
        records.touch()
        rig.bus.inject({"fault": "unplug"})
        assert edge.wait() == 74, edge.text
        assert f"fault_folder: cannot write into {records}: " in edge.text
        assert "summary: cannot write /dev/full: No space left on device" in edge.text
        assert edge.lines[-1].startswith("edge-runtime: the port is gone (")


def test_another_arm_on_the_same_name_is_refused(rig: Bench) -> None:
    order: dict[str, Any] = {"fault": "register", "ids": [4], "name": "Homing_Offset"}
    with rig.fault(), rig.running() as edge:
        rig.bus.inject({"fault": "unplug"})
        edge.wait_for("the arm is waited for")
        rig.bus.inject({**order, "value": 77})
        rig.bus.inject({"fault": "replug"})
        assert edge.wait() == 78, edge.text
        assert "Homing_Offset" in edge.lines[-1] or "homing_offset" in edge.lines[-1]
    rig.bus.inject({**order, "value": 0})


def test_an_end_while_the_arm_is_waited_for_says_that_it_was_not_stopped(rig: Bench) -> None:
    with rig.fault(), rig.running() as edge:
        rig.bus.inject({"fault": "unplug"})
        edge.wait_for("the arm is waited for")
        rig.bus.inject({"fault": "silent", "ids": [1]})
        rig.bus.inject({"fault": "replug"})
        edge.wait_for("no answer from shoulder_pan (id 1)")
        assert edge.end() == 74, edge.text


def test_answers_older_than_an_action_may_be_move_nothing(rig: Bench) -> None:
    """Every round trip takes longer than max_action_age_s: the arm stands, and the summary says why."""
    rig.proxy.link = Link(delay_s=0.25)
    began = now()
    with rig.start("--max_action_age_s=0.4", "--duration_s=1.5") as edge:
        assert edge.wait() == 0, edge.text
    rig.proxy.link = Link()
    report = json.loads((rig.folder / "summary.json").read_text())
    assert report["chunks"]["merged"] >= 1
    assert report["loop"]["executed"] == 0
    assert report["loop"]["too_old"] >= 1
    assert "actions too old" in edge.text
    assert len({tuple(goals.values()) for goals in rig.goals(began)}) == 1


def test_a_server_with_another_policy_is_refused_and_the_arm_let_go_of(rig: Bench) -> None:
    before = rig.server.policy
    with rig.running() as edge:
        rig.server.kill()
        rig.server.policy = replace(before, digest=bytes(32))
        rig.server.restart()
        assert edge.wait() == 76, edge.text
    rig.server.policy = before
    assert rig.torque == [0] * 6
