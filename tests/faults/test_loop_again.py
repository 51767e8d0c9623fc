"""A loop that failed runs again once it is primed; a supervisor sees that it lives, and can take the arm from it."""

from __future__ import annotations

import mmap
import threading
import time
from typing import Any

import numpy as np
import pytest

from edge_runtime._realtime import ActionRing, ActuatorLoop, FeetechPort, PythonPort
from edge_runtime.acting.supervisor.page import FOR_EVER_NS, Page
from edge_runtime.errors import ActuatorFault, ConfigError, DeviceError
from edge_runtime.motors.bus import Bus
from edge_runtime.virtual_arm.bus import VirtualBus

SECOND = 1_000_000_000


class Arm:
    """Goes where it is told, unless `broken`."""

    def __init__(self) -> None:
        self.at = np.zeros(1)
        self.goals: list[float] = []
        self.reads = 0
        self.broken = False

    def read(self) -> Any:
        self.reads += 1
        if self.broken:
            raise RuntimeError("no answer")
        return self.at

    def write(self, goals: Any) -> None:
        self.goals.append(float(goals[0]))
        self.at = goals


def loop_on(arm: Arm, ring: ActionRing | None = None, **settings: Any) -> ActuatorLoop:
    loop = ActuatorLoop(
        ring or ActionRing(50, 1), PythonPort(arm, 1), **({"fps": 500, "max_missed_replies": 2} | settings)
    )
    loop.prime([0])
    return loop


def rows(*values: float) -> Any:
    return np.array(values, np.float32)[:, None]


def run_until_fault(loop: ActuatorLoop) -> ActuatorFault:
    with pytest.raises(ActuatorFault) as caught:
        loop.run()
    return caught.value


def test_a_loop_that_failed_goes_on_where_the_arm_is_and_its_counts_go_on() -> None:
    ring, arm = ActionRing(50, 1, (0, 1)), Arm()
    loop = loop_on(arm, ring, fps=10)
    ring.merge(0, rows(1, 2, 3), 0)
    loop.tick(0)
    arm.broken = True
    loop.tick(1)
    with pytest.raises(ActuatorFault, match="failed 2 times"):
        loop.tick(2)
    with pytest.raises(ActuatorFault, match="failed 2 times"):
        loop.tick(3)  # not by itself
    sequence = loop.record.sequence
    arm.broken, arm.at = False, np.array([40.0])
    ring.open_session(1, clear=True)
    loop.prime([40])
    loop.tick(4)
    assert arm.goals == [1, 2, 40]
    assert (loop.record.sequence, loop.record.timestep, loop.record.level) == (sequence + 1, 2, 0)
    assert [tick["outcome"] for tick in loop.recent_ticks()] == ["picked", "picked", "failed", "starved"]
    assert loop.counters()["read_errors"] == 2


def test_who_waits_learns_of_the_fault_once_and_then_sleeps_until_it_runs_again() -> None:
    arm = Arm()
    loop = loop_on(arm)
    faults: list[ActuatorFault] = []
    thread = threading.Thread(target=lambda: faults.append(run_until_fault(loop)))
    thread.start()
    assert loop.wait(5, 10)
    began = time.monotonic()
    arm.broken = True
    assert loop.wait(10**9, 10) is None  # woken by it
    assert time.monotonic() - began < 5
    thread.join()
    assert faults
    began = time.monotonic()
    assert loop.wait(10**9, 0.05) is None
    assert time.monotonic() - began >= 0.05  # a watcher does not spin
    seen = loop.record.sequence
    arm.broken = False
    loop.prime([0])
    thread = threading.Thread(target=loop.run)
    thread.start()
    assert loop.wait(seen, 10)
    loop.stop()
    thread.join()


def test_a_pause_outlives_a_fault() -> None:
    arm = Arm()
    loop = loop_on(arm, fps=10)
    loop.pause()
    arm.broken = True
    loop.tick(0)
    with pytest.raises(ActuatorFault):
        loop.tick(1)
    arm.broken = False
    loop.prime([7])
    loop.tick(2)
    assert loop.record.paused
    assert arm.goals == []


def test_stop_is_for_good_also_after_a_fault() -> None:
    arm = Arm()
    loop = loop_on(arm)
    arm.broken = True
    run_until_fault(loop)
    written = len(arm.goals)
    loop.stop()
    arm.broken = False
    loop.prime([0])
    loop.run()
    assert len(arm.goals) == written


def test_a_loop_that_runs_cannot_be_primed() -> None:
    loop = loop_on(Arm())
    thread = threading.Thread(target=loop.run)
    thread.start()
    assert loop.wait(2, 10)
    with pytest.raises(DeviceError, match="the loop runs"):
        loop.prime([0])
    loop.stop()
    thread.join()


def test_a_port_goes_on_over_another_line() -> None:
    port = FeetechPort(None, [1, 2], [0, 0], [0, 0], [4096, 4096], [0, 0], timeout_ns=SECOND)
    loop = ActuatorLoop(ActionRing(10, 2), port, fps=30)
    for _ in range(2):
        with VirtualBus() as arm:
            arm.place([2048 + 91] * 6)
            with Bus(arm.path) as bus:
                port.reopen(bus.lend())
                loop.prime([0, 0])
                loop.tick(time.monotonic_ns())
                assert loop.record.positions.tolist() == pytest.approx([8, 8])
                arm.inject({"fault": "unplug"})
                with pytest.raises(ActuatorFault, match="the port is gone"):
                    loop.tick(time.monotonic_ns())
                assert port.hung_up
    assert port.reads == 4


def test_a_port_that_nobody_opened_is_gone() -> None:
    loop = ActuatorLoop(ActionRing(10, 1), FeetechPort(None, [1], [0], [0], [4096], [0], timeout_ns=SECOND), fps=30)
    loop.prime([0])
    with pytest.raises(ActuatorFault, match="the port is gone"):
        loop.tick(0)


# The page.


def test_every_tick_says_when_the_next_is_due_and_the_end_when_the_arm_must_be_at_rest() -> None:
    page = Page.create()
    page.reset(rests_within_s=7)
    loop = loop_on(Arm(), page=page.words)
    assert page.patient_until_ns == FOR_EVER_NS
    loop.tick(10 * SECOND)
    assert page.patient_until_ns == 10 * SECOND + 300_000_000 + SECOND // 500
    thread = threading.Thread(target=loop.run)
    thread.start()
    assert loop.wait(3, 10)
    assert 0 < page.patient_until_ns - time.monotonic_ns() < SECOND
    loop.stop()
    thread.join()
    assert 0 < page.patient_until_ns - time.monotonic_ns() <= 7 * SECOND


def test_a_fenced_loop_leaves_the_bus_alone() -> None:
    page, arm = Page.create(), Arm()
    loop = loop_on(arm, page=page.words)
    loop.tick(0)
    page.fence()
    for _ in range(2):
        with pytest.raises(ActuatorFault, match="the supervisor took the arm"):
            loop.tick(1)
    assert (arm.reads, len(arm.goals)) == (1, 1)
    page.reset()
    loop.prime([0])
    loop.tick(2)
    assert (arm.reads, len(arm.goals)) == (2, 2)


def test_a_fence_that_comes_within_a_tick_is_seen_before_the_write() -> None:
    page = Page.create()

    class Fencing(Arm):
        def read(self) -> Any:
            page.fence()  # the runtime was stopped here, and wakes
            return super().read()

    arm = Fencing()
    with pytest.raises(ActuatorFault, match="the supervisor took the arm"):
        loop_on(arm, page=page.words).tick(0)
    assert arm.goals == []


def test_a_page_that_is_too_small_is_refused() -> None:
    words = memoryview(mmap.mmap(-1, 8)).cast("q")
    with pytest.raises(ConfigError, match="page: 1 words"):
        loop_on(Arm(), page=words)
