"""The supervisor stops an arm whose runtime has died or hangs, and lets go of the port; nothing else makes it act."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edge_runtime._realtime import ActionRing, ActuatorLoop
from edge_runtime.acting.arm import Arm
from edge_runtime.acting.supervisor import process as supervisor_process
from edge_runtime.acting.supervisor.client import Supervisor
from edge_runtime.acting.supervisor.page import Page
from edge_runtime.config import SO101FollowerConfig, StopPolicy
from edge_runtime.errors import BusError, EdgeRuntimeError
from edge_runtime.motors.stopping import Axis, StopPlan
from edge_runtime.robots.so_follower import SOFollower
from edge_runtime.virtual_arm.bus import VirtualBus
from edge_runtime.virtual_arm.calibration import write_calibration
from edge_runtime.virtual_arm.frame_log import Entry

SECOND = 1_000_000_000
PATIENCE_NS = 300_000_000


@pytest.fixture
def arm() -> Iterator[VirtualBus]:
    with VirtualBus(seed=1) as arm:
        arm.place([1500, 1900, 2100, 2200, 2300, 2500])
        yield arm


@pytest.fixture
def robot(arm: VirtualBus, tmp_path: Path) -> Iterator[SOFollower]:
    write_calibration(tmp_path, "virtual")
    config = SO101FollowerConfig(
        id="virtual", port=arm.path, calibration_dir=tmp_path, rest_pose={"shoulder_pan": -40.0}
    )
    with SOFollower(config) as robot:
        yield robot


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    with Supervisor() as supervisor:
        yield supervisor


def energise(arm: VirtualBus, robot: SOFollower, supervisor: Supervisor, policy: StopPolicy = "limp") -> None:
    robot.prepare(lambda: supervisor.arm(robot.fileno(), robot.stop_plan(policy)))
    arm.log.clear()


def hang(arm: VirtualBus, supervisor: Supervisor) -> None:
    """No tick comes any more, and the supervisor's first frame does, but not before its time."""
    patient_until_ns = time.monotonic_ns() + PATIENCE_NS
    supervisor.page.words[0] = patient_until_ns
    first = arm.log.wait_for(lambda entry: "WRITE" in entry.instruction, 10)
    assert first.time_s * SECOND >= patient_until_ns


def torque(arm: VirtualBus) -> set[int]:
    return set(arm.values("Torque_Enable"))


def is_ramp(entry: Entry) -> bool:
    """Its first step."""
    return entry.request is None and entry.values.get(1) == {"Torque_Limit": 900}


def test_it_imports_next_to_nothing() -> None:
    code = (
        "import sys, edge_runtime.acting.supervisor.process as p;"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'numpy', 'grpc', 'cv2', 'yaml'}))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_a_loop_that_does_not_tick_loses_the_arm(arm: VirtualBus, robot: SOFollower, supervisor: Supervisor) -> None:
    energise(arm, robot, supervisor)
    hang(arm, supervisor)
    assert supervisor.has_acted
    supervisor.stand_down()
    assert torque(arm) == {0}


def test_a_loop_that_ticks_keeps_it(arm: VirtualBus, robot: SOFollower, supervisor: Supervisor) -> None:
    energise(arm, robot, supervisor)
    supervisor.page.words[0] = time.monotonic_ns() + 60 * SECOND
    supervisor.stand_down()
    assert not supervisor.has_acted
    assert torque(arm) == {1}


def test_it_acts_when_the_last_tick_has_lost_its_patience_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that moves only while it sleeps: the loop begins to tick late, and hangs after ten seconds."""
    page, now_ns, last_tick_ns = Page.create(), 0, 10 * SECOND

    def sleep(readers: Any, writers: Any, others: Any, left_s: float) -> tuple[list[Any], ...]:
        nonlocal now_ns
        now_ns += round(left_s * SECOND)
        page.words[0] = min(now_ns, last_tick_ns) + PATIENCE_NS
        return [], [], []

    monkeypatch.setattr(supervisor_process, "select", SimpleNamespace(select=sleep))
    monkeypatch.setattr(supervisor_process, "time", SimpleNamespace(monotonic_ns=lambda: now_ns))
    with socket.socket() as link:
        assert not supervisor_process.is_ordered_before(link, page)
    assert now_ns == last_tick_ns + PATIENCE_NS


def test_park_leads_the_arm_to_rest_first(arm: VirtualBus, robot: SOFollower, supervisor: Supervisor) -> None:
    energise(arm, robot, supervisor, "park")
    hang(arm, supervisor)
    supervisor.stand_down()
    assert arm.positions()[0] == pytest.approx(2048 - 455, abs=23)
    assert torque(arm) == {0}


def test_while_it_leads_the_arm_to_rest_it_is_waited_for(
    arm: VirtualBus, robot: SOFollower, supervisor: Supervisor
) -> None:
    slow = replace(robot.stop_plan("park"), max_speed=20.0)  # two seconds on the way, STAND_DOWN_S is one
    robot.prepare()
    supervisor.arm(robot.fileno(), replace(slow, torque_limits=robot.stop_plan("park").torque_limits))
    arm.log.clear()
    hang(arm, supervisor)
    supervisor.stand_down()
    assert supervisor._process.returncode == 0
    assert arm.positions()[0] == pytest.approx(2048 - 455, abs=23)
    assert torque(arm) == {0}


def test_after_it_has_acted_the_next_time_is_as_the_first(
    arm: VirtualBus, robot: SOFollower, supervisor: Supervisor
) -> None:
    for _ in range(2):
        energise(arm, robot, supervisor)
        assert not supervisor.has_acted
        assert torque(arm) == {1}
        hang(arm, supervisor)
        supervisor.stand_down()
        supervisor.stand_down()
        assert torque(arm) == {0}


@pytest.mark.parametrize("fault", [{"fault": "silent", "ids": [2]}, {"fault": "flags", "bits": "overload"}])
def test_a_bad_bus_costs_it_no_more_than_its_alarm_allows(
    arm: VirtualBus, robot: SOFollower, supervisor: Supervisor, fault: dict[str, Any]
) -> None:
    energise(arm, robot, supervisor)
    arm.inject(fault)
    hang(arm, supervisor)
    supervisor.stand_down()
    assert supervisor._process.returncode == (0 if "bits" in fault else 74)  # it says so where it is not certain
    assert torque(arm) == {0}


def test_a_port_that_is_gone_is_not_waited_for(arm: VirtualBus, robot: SOFollower, supervisor: Supervisor) -> None:
    energise(arm, robot, supervisor)
    arm.inject({"fault": "unplug"})
    supervisor.page.words[0] = time.monotonic_ns()
    assert supervisor._process.wait(10) == 74  # by itself: its alarm would have come later


def test_it_gives_the_port_back_to_who_opens_it_next(
    arm: VirtualBus, robot: SOFollower, supervisor: Supervisor
) -> None:
    energise(arm, robot, supervisor)
    robot.close()
    with pytest.raises(BusError, match="in use"):  # its duplicate keeps the lock
        robot.open()
    supervisor.stand_down()
    robot.open()


def test_a_supervisor_that_was_killed_is_missed_and_replaced(
    arm: VirtualBus, robot: SOFollower, supervisor: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    energise(arm, robot, supervisor)
    supervisor._process.kill()
    deadline = time.monotonic() + 10
    while "the supervisor has ended (-9)" not in caplog.text:
        assert time.monotonic() < deadline
        supervisor._process.wait(10)
    energise(arm, robot, supervisor)  # another one
    supervisor.stand_down()
    supervisor._link.close()
    with pytest.raises(EdgeRuntimeError, match="the supervisor, which would stop the arm, does not answer"):
        supervisor.arm(robot.fileno(), robot.stop_plan("limp"))


@pytest.mark.parametrize("answers", [True, False])
def test_what_the_runtime_could_not_let_go_of_is_left_to_the_supervisor(
    arm: VirtualBus, robot: SOFollower, supervisor: Supervisor, answers: bool
) -> None:
    """It is not dismissed: whether torque is off in the end decides how the run ends."""

    class Stubborn(SOFollower):
        def stop(self, policy: StopPolicy, hurry: threading.Event) -> None:
            arm.inject({"fault": "silent", "ids": [] if answers else [2]})
            raise BusError("torque may still be on")

    robot.close()
    stubborn = Stubborn(robot._config)
    ring = ActionRing(10, 6)
    loop = ActuatorLoop(ring, stubborn.port(0.1), fps=10, page=supervisor.page.words)
    loop.stop()
    stop = threading.Event()
    listener = SimpleNamespace(arm_starts=lambda: None)
    whole = Arm(stubborn, loop, robot._config, listener, stop=stop, hurry=stop, supervisor=supervisor)  # type: ignore[arg-type]
    with stubborn, nullcontext() if answers else pytest.raises(BusError, match="torque may still be on"):
        whole.run()
    assert supervisor.has_acted
    assert supervisor._process.returncode == (0 if answers else 74)
    assert torque(arm) == {0}


def test_a_supervisor_that_has_no_arm_lets_go_of_none(supervisor: Supervisor) -> None:
    assert not supervisor.act()
    assert not supervisor.has_acted


# How this process may end.

RUNTIME = """
import sys
from pathlib import Path
from edge_runtime.config import SO101FollowerConfig
from edge_runtime.robots.so_follower import SOFollower
from edge_runtime.acting.supervisor.client import Supervisor
port, folder, ending = sys.argv[1:]
with Supervisor() as supervisor:
    with SOFollower(SO101FollowerConfig(id="virtual", port=port, calibration_dir=Path(folder))) as robot:
        robot.prepare(lambda: supervisor.arm(robot.fileno(), robot.stop_plan("limp")))
        print(supervisor._process.pid, flush=True)
        if ending == "abort":
            import os
            os.abort()
        if ending == "raise":
            raise RuntimeError("a bug")
        sys.stdin.read()
"""


@pytest.mark.parametrize("ending", ["kill", "abort", "raise", "group", "terminal"])
def test_however_the_runtime_ends_the_arm_is_let_go_of(arm: VirtualBus, tmp_path: Path, ending: str) -> None:
    write_calibration(tmp_path, "virtual")
    process = subprocess.Popen(
        [sys.executable, "-c", RUNTIME, arm.path, str(tmp_path), ending],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    supervisor = int(process.stdout.readline())
    if ending == "group":  # as systemd does
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGABRT):
            os.kill(supervisor, number)
        process.kill()
    elif ending == "terminal":  # Ctrl-\\
        os.killpg(process.pid, signal.SIGQUIT)
    elif ending == "kill":
        process.kill()
    arm.log.wait_for(is_ramp, 10)
    assert "the runtime is gone: limp" in process.stderr.read()  # to the end: it has ended too
    assert torque(arm) == {0}
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()


def test_the_suspended_job_of_a_terminal_does_not_take_the_supervisor_along(supervisor: Supervisor) -> None:
    assert os.getpgid(supervisor._process.pid) != os.getpgrp()


@pytest.mark.parametrize("policy", ["limp", "park"])
def test_on_a_line_that_returns_what_is_sent_the_arm_is_let_go_of_too(
    arm: VirtualBus, tmp_path: Path, supervisor: Supervisor, policy: StopPolicy
) -> None:
    write_calibration(tmp_path, "virtual")
    arm.inject({"fault": "echo"})
    with SOFollower(SO101FollowerConfig(id="virtual", port=arm.path, calibration_dir=tmp_path, echo=True)) as robot:
        energise(arm, robot, supervisor, policy)
        hang(arm, supervisor)
        assert supervisor._process.wait(20) == 0
    assert torque(arm) == {0}


def test_an_arm_that_cannot_be_led_to_rest_is_let_go_of(arm: VirtualBus, robot: SOFollower) -> None:
    """Here because the line began to return what is sent."""
    robot.prepare()
    arm.inject({"fault": "echo"})
    with suppress(BusError):  # whether servos answer before the echo is noticed is chance
        robot.stop("park", threading.Event())
    arm.log.wait_for(lambda entry: entry.request is None and {"Torque_Enable": 0} in entry.values.values(), 10)
    assert torque(arm) == {0}


def test_a_module_in_the_working_directory_is_not_taken_for_one_of_ours(
    arm: VirtualBus, robot: SOFollower, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "serial.py").write_text("raise SystemExit('somebody else's serial')")
    monkeypatch.chdir(tmp_path)
    with Supervisor() as supervisor:
        energise(arm, robot, supervisor)
        hang(arm, supervisor)


def test_plans_survive_the_way() -> None:
    plan = StopPlan("park", {1: 1000, 6: 500}, [Axis(1, 2048, 11.375)], 20.0, 3.0, echo=True)
    assert StopPlan.decode(plan.encode()) == plan
    assert (plan.within_s, StopPlan("limp", {}).within_s) == (5.0, 2.0)


def test_two_supervisors_do_not_meet(supervisor: Supervisor) -> None:
    with Supervisor() as other:
        other.page.fence()
        assert not supervisor.has_acted
