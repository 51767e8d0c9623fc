"""One servo after another is asked how it feels; what ends the loop must be seen twice."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from edge_runtime._realtime import ActionRing, ActuatorLoop, FeetechPort
from edge_runtime.errors import ActuatorFault
from edge_runtime.motors.bus import Bus
from edge_runtime.motors.calibration import JOINTS
from edge_runtime.motors.health import Health
from edge_runtime.program.spell import STEADY_S
from edge_runtime.robots.so_watch import ServoWatch
from edge_runtime.virtual_arm.bus import VirtualBus

IDS = list(range(1, 7))
PERIOD_NS = 1_000_000_000 // 10  # a tick for each look


@pytest.fixture
def arm() -> Iterator[VirtualBus]:
    with VirtualBus(seed=3, weights={}) as arm:
        for servo in arm.servos.values():
            servo.write(40, b"\1")
        yield arm


@pytest.fixture
def bus(arm: VirtualBus) -> Iterator[Bus]:
    with Bus(arm.path) as bus:
        yield bus


def port_on(bus: Bus, *, echo: bool = False, expects_torque: bool = True, stop_temperature: int = 68) -> FeetechPort:
    return FeetechPort(
        bus.lend(),
        IDS,
        [0] * 6,
        [0] * 6,
        [4096] * 6,
        [0] * 6,
        timeout_ns=200_000_000,
        echo=echo,
        expects_torque=expects_torque,
        stop_temperature=stop_temperature,
    )


def loop_on(port: FeetechPort, ticks: int = 0) -> ActuatorLoop:
    loop = ActuatorLoop(ActionRing(10, 6), port, fps=10, names=JOINTS)
    loop.prime([0] * 6)
    turn(loop, ticks)
    return loop


def turn(loop: ActuatorLoop, ticks: int) -> None:
    for tick in range(ticks):
        loop.tick(tick * PERIOD_NS)


def test_each_in_turn_and_what_its_registers_hold(arm: VirtualBus, bus: Bus) -> None:
    for name, value in {
        "Present_Load": -250,
        "Present_Voltage": 74,
        "Present_Temperature": 41,
        "Present_Current": 200,
    }.items():
        arm.inject({"fault": "lie", "ids": [2], "name": name, "value": value})
    port = port_on(bus)
    assert port.health == (None,) * 6
    loop_on(port, ticks=12)
    assert port.checks == (2,) * 6
    assert [entry.frame.servo for entry in arm.log if entry.instruction == "READ"] == [2, 3, 4, 5, 6, 1] * 2
    reading = port.health[1]
    assert reading is not None
    assert Health.of(*reading) == Health(load=25.0, voltage=7.4, temperature=41, current=1.3)


def test_a_look_costs_one_read_of_one_servo_every_tenth_of_a_second(arm: VirtualBus, bus: Bus) -> None:
    loop = ActuatorLoop(ActionRing(10, 6), port_on(bus), fps=200)
    loop.prime([0] * 6)
    turn(loop, 40)
    assert len([entry for entry in arm.log if entry.instruction == "READ"]) == 2


def test_a_servo_whose_torque_is_off_has_restarted(arm: VirtualBus, bus: Bus) -> None:
    loop = loop_on(port_on(bus), ticks=2)
    arm.inject({"fault": "reboot", "ids": [5]})
    with pytest.raises(ActuatorFault, match=r"wrist_roll \(id 5\) has lost its torque: it restarted"):
        turn(loop, 8)


def test_a_servo_that_is_too_hot_ends_the_loop(arm: VirtualBus, bus: Bus) -> None:
    loop = loop_on(port_on(bus), ticks=2)
    arm.inject({"fault": "register", "ids": [4], "name": "Present_Temperature", "value": 68})
    with pytest.raises(ActuatorFault, match=r"wrist_flex \(id 4\) is 68 °C hot, the limit is 68"):
        turn(loop, 8)


def test_one_reading_is_not_believed(arm: VirtualBus, bus: Bus) -> None:
    loop = loop_on(port_on(bus))
    turn(loop, 1)  # the next is servo 3
    arm.inject({"fault": "register", "ids": [3], "name": "Present_Temperature", "value": 200})
    turn(loop, 1)
    arm.inject({"fault": "register", "ids": [3], "name": "Present_Temperature", "value": 30})
    turn(loop, 12)


def test_without_torque_of_our_own_nobody_has_restarted(arm: VirtualBus, bus: Bus) -> None:
    for servo in arm.servos.values():
        servo.write(40, b"\0")
    loop_on(port_on(bus, expects_torque=False), ticks=14)


def test_a_silent_servo_is_not_asked_and_the_others_are(arm: VirtualBus, bus: Bus) -> None:
    port = port_on(bus)
    loop = loop_on(port)
    arm.inject({"fault": "silent", "ids": [3]})
    turn(loop, 10)
    assert port.checks[2] == 0
    asked = sum(port.checks)
    assert asked >= 8  # a busy machine may answer late
    arm.inject({"fault": "silent"})
    turn(loop, 2)
    assert sum(port.checks) == asked


@pytest.mark.parametrize("fault", ["corrupt", "truncate", "junk", "foreign", "late"])
def test_a_damaged_answer_is_no_answer(arm: VirtualBus, bus: Bus, fault: str) -> None:
    port = port_on(bus)
    loop = loop_on(port)
    arm.inject({"fault": fault, "rate": 0.3} | ({"delay_s": 0.05} if fault == "late" else {}))
    turn(loop, 12)
    healthy = (0, 120, 30, 0)
    assert {reading for reading in port.health if reading} == {healthy}


def test_on_a_line_that_repeats_us(arm: VirtualBus, bus: Bus) -> None:
    arm.inject({"fault": "echo"})
    port = port_on(bus, echo=True)
    loop = loop_on(port, ticks=12)
    assert port.checks == (2,) * 6
    assert (port.echo_errors, port.bad_frames, loop.counters()["read_errors"]) == (0, 0, 0)


def test_what_begins_and_what_ends_is_said_once(arm: VirtualBus, bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    port = port_on(bus)
    seconds = 0.0
    loop, watch = loop_on(port), ServoWatch(port, lambda: seconds)

    def go(ticks: int, tick_s: float = 1 / 30) -> list[str]:
        nonlocal seconds
        caplog.clear()
        for _ in range(ticks):
            seconds += tick_s
            turn(loop, 1)
            watch.look()
        return caplog.messages

    assert go(6) == []
    arm.inject({"fault": "silent", "ids": [3]})
    assert go(2) == []
    assert go(1) == ["elbow_flex (id 3) does not answer"]  # the third miss in a row
    assert go(3) == []
    arm.inject({"fault": "clear"})
    assert go(12) == []  # not yet: it may be one good answer between bad ones
    arm.inject({"fault": "silent", "ids": [3]})
    assert go(3) == []  # and then the same spell goes on
    arm.inject({"fault": "clear"})
    assert go(6, STEADY_S) == ["elbow_flex (id 3) is well again"]
    arm.inject({"fault": "silent", "ids": [1, 2]})
    assert go(3) == ["shoulder_pan (id 1), shoulder_lift (id 2) do not answer"]
    arm.inject({"fault": "silent", "ids": [1, 2, 3, 4, 5, 6]})
    assert go(3) == ["elbow_flex (id 3), wrist_flex (id 4), wrist_roll (id 5), gripper (id 6) do not answer"]
    arm.inject({"fault": "clear"})
    assert go(6, STEADY_S) == ["all servos are well again"]
    arm.inject({"fault": "silent", "ids": [1, 2, 3, 4, 5, 6]})
    assert go(3) == ["no servo answers"]
    arm.inject({"fault": "clear"})
    assert go(6, STEADY_S) == ["all servos are well again"]
    arm.inject({"fault": "flags", "ids": [6], "bits": "overload"})
    arm.inject({"fault": "register", "ids": [1], "name": "Present_Temperature", "value": 61})
    arm.inject({"fault": "register", "ids": [2], "name": "Present_Voltage", "value": 95})
    arm.inject({"fault": "lie", "ids": [4], "name": "Present_Load", "value": 850})
    assert sorted(go(12)) == [
        "gripper (id 6) reports overload",
        "shoulder_lift (id 2) is at 9.5 V, of 12.0",
        "shoulder_pan (id 1) is 61 °C warm",
        "wrist_flex (id 4) is under 85 % load",
    ]
    assert {joint: health.temperature for joint, health in watch.health().items()}["shoulder_pan"] == 61
