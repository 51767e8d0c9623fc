"""The SO follower comes to rest: as asked, at once when told to hurry, and on every line that still carries a byte."""

import contextlib
from typing import Any

import numpy as np
import pytest

from edge_runtime.config import SO101FollowerConfig
from edge_runtime.errors import BusError, BusTimeout
from edge_runtime.motors.bus import Bus
from edge_runtime.motors.stopping import LIMP_S
from edge_runtime.robots.so_follower import SOFollower
from edge_runtime.virtual_arm.bus import VirtualBus
from tests.edge_runtime.robots.bench import CALM, IDS, POSE, Hurry, Stage, Time, held, sequence


def test_limp_ramps_then_lets_go(robot: SOFollower, arm: VirtualBus, clock: Time) -> None:
    robot.prepare()
    arm.log.clear()
    began = clock.seconds
    robot.stop("limp", Hurry())
    assert clock.seconds - began == pytest.approx(0.5)
    ramp = [entry.values for entry in arm.log.writes("Torque_Limit")]
    assert [values[1]["Torque_Limit"] for values in ramp] == [900, 800, 700, 600, 500, 400, 300, 200, 100, 0, 1000]
    assert [values[6]["Torque_Limit"] for values in ramp] == [450, 400, 350, 300, 250, 200, 150, 100, 50, 0, 500]
    assert sequence(arm, "Goal_Position", "Torque_Limit", "Torque_Enable")[:7] == [
        "read Torque_Enable",
        "write Goal_Position",
        "read Goal_Position",
        "read Torque_Limit",
        "write Torque_Limit",
        "write Torque_Enable",
        "read Torque_Enable",
    ]
    assert held(arm, "Torque_Enable") == [0] * 6
    assert held(arm, "Torque_Limit") == [1000] * 5 + [500]  # the next program finds an arm with force


def test_hurry_skips_the_ramp(robot: SOFollower, arm: VirtualBus, clock: Time) -> None:
    robot.prepare()
    arm.log.clear()
    robot.stop("limp", Hurry(at=clock.seconds + 0.12))  # while it is under way
    assert [entry.values[1]["Torque_Limit"] for entry in arm.log.writes("Torque_Limit")] == [900, 800, 1000]
    assert held(arm, "Torque_Enable") == [0] * 6


@pytest.mark.parametrize("policy", ["limp", "park", "hold"])
def test_hurry_means_limp_at_once_whatever_the_policy(
    robot: SOFollower, arm: VirtualBus, clock: Time, policy: Any
) -> None:
    robot.prepare()
    arm.log.clear()
    hurry = Hurry()
    hurry.set()
    robot.stop(policy, hurry)
    assert sequence(arm, "Torque_Enable", "Goal_Position")[0] == "write Torque_Enable"
    assert held(arm, "Torque_Enable") == [0] * 6
    assert clock.seconds < 0.1


@pytest.mark.parametrize("ids", [[3], list(IDS)])
@pytest.mark.parametrize("bits", ["overload", "over-temperature", "voltage"])
def test_flags_do_not_keep_torque_on(
    robot: SOFollower, arm: VirtualBus, clock: Time, ids: list[int], bits: str
) -> None:
    robot.prepare()
    arm.inject({"fault": "flags", "ids": ids, "bits": bits})
    robot.stop("limp", Hurry())
    assert held(arm, "Torque_Enable") == [0] * 6


def test_torque_off_goes_to_all_before_anything_is_verified(stage: Stage) -> None:
    robot, arm = stage.robot, stage.arm
    robot.prepare()
    arm.inject({"fault": "silent", "ids": [1]})
    with pytest.raises(BusError, match=r"torque may still be on: shoulder_pan \(id 1\) did not confirm"):
        robot.stop("limp", Hurry())
    assert held(arm, "Torque_Enable") == [0] * 6


def test_a_torque_off_that_was_lost_is_repeated(robot: SOFollower, arm: VirtualBus, clock: Time) -> None:
    robot.prepare()
    arm.log.clear()
    hurry = Hurry()
    hurry.set()
    arm.inject({"fault": "deaf", "ids": [4], "count": 2})
    robot.stop("limp", hurry)
    assert [list(entry.values) for entry in arm.log.writes("Torque_Enable")] == [[1, 2, 3, 4, 5, 6], [4]]
    assert held(arm, "Torque_Enable") == [0] * 6


def test_a_noisy_line_is_let_go_of_too(robot: SOFollower, arm: VirtualBus, clock: Time) -> None:
    robot.prepare()
    for fault in ("corrupt", "silent", "junk", "foreign"):
        arm.inject({"fault": fault, "rate": 0.1})
    robot.stop("limp", Hurry())
    assert held(arm, "Torque_Enable") == [0] * 6


def test_park_goes_to_the_pose_at_start_slowly_then_limp(robot: SOFollower, arm: VirtualBus, clock: Time) -> None:
    robot.prepare()
    away = [goal + 400 for goal in POSE[:5]] + [2100]
    robot._bus.establish("Goal_Position", dict(zip(IDS, away, strict=True)))
    clock.seconds += 2.0
    assert arm.positions().tolist() == away
    arm.log.clear()
    robot.stop("park", Hurry())
    goals = [entry.values[1]["Goal_Position"] for entry in arm.log.writes("Goal_Position")]
    assert goals[0] <= away[0]
    way, held_at = goals[:-1], goals[-1]  # then limp: where the arm is becomes the goal
    assert np.all(np.diff(way) <= 0)
    assert held_at == pytest.approx(POSE[0], abs=23)
    assert np.abs(np.diff(way)).max() <= 60 * 0.02 / 360 * 4095 + 1  # 60 degrees a second
    assert arm.positions() == pytest.approx(POSE, abs=34)
    assert held(arm, "Torque_Enable") == [0] * 6


def test_after_a_fault_park_still_goes_to_the_pose_at_start(robot: SOFollower, arm: VirtualBus, clock: Time) -> None:
    """Where it stood when it was found again is where the fault left it, maybe high above the table."""
    robot.prepare()
    robot._bus.establish("Goal_Position", {number: goal + 300 for number, goal in zip(IDS, POSE[:5], strict=False)})
    clock.seconds += 2.0
    robot.prepare()
    robot.stop("park", Hurry())
    assert arm.positions() == pytest.approx(POSE, abs=34)


def test_park_obeys_a_rest_pose_and_a_lower_speed(config: SO101FollowerConfig, arm: VirtualBus, clock: Time) -> None:
    config.rest_pose, config.max_speed = {"shoulder_pan": 0.0}, 20.0
    with SOFollower(config, clock) as robot:
        robot.prepare()
        began = clock.seconds
        robot.stop("park", Hurry())
    assert clock.seconds - began == pytest.approx((2048 - 1500) * 360 / 4095 / 20 + 0.5, abs=0.25)
    assert arm.positions() == pytest.approx([2048, *POSE[1:]], abs=34)


def test_park_gives_up_in_time(
    config: SO101FollowerConfig, arm: VirtualBus, clock: Time, caplog: pytest.LogCaptureFixture
) -> None:
    config.rest_pose, config.park_timeout_s = {"shoulder_pan": 110.0}, 1.0
    with SOFollower(config, clock) as robot:
        robot.prepare()
        began = clock.seconds
        robot.stop("park", Hurry())
    assert clock.seconds - began == pytest.approx(1.5, abs=0.1)
    assert "not at rest after 1.0 s: the arm is let go where it is" in caplog.messages
    assert held(arm, "Torque_Enable") == [0] * 6


def test_park_is_cut_short_by_hurry(config: SO101FollowerConfig, arm: VirtualBus, clock: Time) -> None:
    config.rest_pose = {"shoulder_pan": 110.0}
    with SOFollower(config, clock) as robot:
        robot.prepare()
        began = clock.seconds
        robot.stop("park", Hurry(at=began + 0.3))
    assert clock.seconds - began < 0.4
    assert held(arm, "Torque_Enable") == [0] * 6


def test_an_arm_that_is_being_let_go_of_is_not_parked(
    config: SO101FollowerConfig, arm: VirtualBus, clock: Time, caplog: pytest.LogCaptureFixture
) -> None:
    """The runtime was killed in its limp: what force is left could not carry the arm, and it is not given back."""
    config.rest_pose = {"shoulder_pan": 110.0}
    with SOFollower(config, clock) as robot:
        robot.prepare()
        arm.inject({"fault": "register", "ids": [2], "name": "Torque_Limit", "value": 300})
        robot.stop("park", Hurry())
    assert "cannot park: the arm has not all its force any more" in caplog.messages
    assert arm.positions()[0] == POSE[0]
    assert held(arm, "Torque_Enable") == [0] * 6


def test_park_leaves_a_dead_servo_alone(config: SO101FollowerConfig, arm: VirtualBus, clock: Time) -> None:
    config.rest_pose = {"shoulder_pan": -40.0}
    with SOFollower(config, clock) as robot:
        robot.prepare()
        arm.log.clear()
        arm.inject({"fault": "silent", "ids": [5]})
        with pytest.raises(BusError, match="wrist_roll"):
            robot.stop("park", Hurry())
    assert arm.positions()[0] == pytest.approx(2048 - 455, abs=23)
    assert held(arm, "Torque_Enable") == [0] * 6
    assert all(5 not in entry.values for entry in arm.log.writes("Goal_Position"))


def test_hold_leaves_torque_on_and_can_be_ended_later(robot: SOFollower, arm: VirtualBus, clock: Time) -> None:
    robot.prepare()
    arm.log.clear()
    robot.stop("hold", CALM)
    assert not list(arm.log)
    assert held(arm, "Torque_Enable") == [1] * 6
    robot.stop("limp", Hurry())
    assert held(arm, "Torque_Enable") == [0] * 6


def test_stopping_twice_or_before_the_start_is_harmless(robot: SOFollower, arm: VirtualBus, clock: Time) -> None:
    before = len(arm.log)
    robot.stop("limp", Hurry())
    assert len(arm.log) == before  # a dry run touches nothing
    robot.prepare()
    robot.stop("limp", Hurry())
    before = len(arm.log)
    robot.stop("limp", Hurry())
    assert len(arm.log) == before
    robot.close()
    robot.close()
    robot.stop("limp", Hurry())


def test_a_start_that_failed_is_stopped_too(
    robot: SOFollower, arm: VirtualBus, clock: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torque was on from before; what began to change it must end it."""
    robot.prepare()
    robot.stop("hold", CALM)
    servo = arm.servos[2]
    write = servo.write
    monkeypatch.setattr(servo, "write", lambda address, data: None if address == 42 else write(address, data))
    arm.place([1600] * 6)
    servo.set("Goal_Position", 3000)
    with pytest.raises(BusError, match="Goal_Position"):
        robot.prepare()
    assert held(arm, "Torque_Enable") == [1] * 6
    robot.stop("limp", Hurry())
    assert held(arm, "Torque_Enable") == [0] * 6


def test_a_pulled_cable_is_said_once_and_plainly(robot: SOFollower, arm: VirtualBus, clock: Time) -> None:
    robot.prepare()
    arm.inject({"fault": "unplug"})
    expected = "the port is gone.*hold their last goal until their supply is cut"
    with pytest.raises(BusError, match=expected):
        robot.stop("limp", Hurry())
    robot.stop("limp", Hurry())
    robot.close()


def test_an_arm_that_another_has_let_go_of_is_not_touched(robot: SOFollower, arm: VirtualBus, clock: Time) -> None:
    """The supervisor, for instance; torque is confirmed off all the same."""
    robot.prepare()
    for servo in arm.servos.values():
        servo.set("Torque_Enable", 0)
    arm.log.clear()
    began = clock.seconds
    robot.stop("limp", Hurry())
    assert clock.seconds == began
    assert not arm.log.writes("Goal_Position")
    assert sequence(arm, "Torque_Enable")[-2:] == ["write Torque_Enable", "read Torque_Enable"]


# Whatever fails on the way.


def last_force(arm: VirtualBus) -> list[int]:
    """The limits of servo 1 that were written while its torque was on."""
    off = min(entry.time_s for entry in arm.log.writes("Torque_Enable"))
    return [e.values[1]["Torque_Limit"] for e in arm.log.writes("Torque_Limit") if e.time_s <= off and 1 in e.values][
        :-1
    ]


def test_a_second_limp_goes_on_where_the_first_was_cut_short(robot: SOFollower, arm: VirtualBus, clock: Time) -> None:
    """SIGKILL in the middle of a limp: the arm has sunk, and the supervisor begins."""
    robot.prepare()
    arm.place([1700, *POSE[1:]])
    for servo in arm.servos.values():
        servo.set("Torque_Limit", 100)
    arm.servos[1].set("Goal_Position", POSE[0])
    arm.log.clear()
    robot.stop("limp", Hurry())
    assert last_force(arm) == [90, 80, 70, 60, 50, 40, 30, 20, 10, 0]
    assert arm.positions()[0] == 1700  # its goal was not followed any more
    assert arm.log.writes("Goal_Position")[0].values[1] == {"Goal_Position": 1700}


@pytest.mark.parametrize("register", [48, 56])
def test_a_servo_whose_force_or_place_is_not_certain_is_let_go_of_at_once(
    stage: Stage, register: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    robot, arm = stage.robot, stage.arm
    robot.prepare()
    arm.log.clear()
    servo = arm.servos[1]
    read, lies = servo.read, iter(range(0, 100_000, 1000))

    def lie(address: int, count: int) -> bytes:
        if not address <= register < address + count:
            return read(address, count)
        return b"" if register == 48 else (next(lies) % 4000).to_bytes(2, "little").rjust(count, b"\0")

    monkeypatch.setattr(servo, "read", lie)
    with contextlib.suppress(BusError):
        robot.stop("limp", Hurry())
    ramp = arm.log.writes("Torque_Limit")[:10]
    assert [entry.values[1]["Torque_Limit"] for entry in ramp] == [0] * 10
    assert [entry.values[2]["Torque_Limit"] for entry in ramp] == list(range(900, -1, -100))
    assert held(arm, "Torque_Enable") == [0] * 6


def test_writes_that_fail_in_the_ramp_do_not_leave_torque_on(
    robot: SOFollower, arm: VirtualBus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    robot.prepare()
    write, failed = robot._bus._port.write, iter(range(12))

    def full(data: bytes) -> None:
        if data[4] == 0x83 and next(failed, None) is not None:
            raise BusTimeout("takes no more bytes")
        write(data)

    monkeypatch.setattr(robot._bus._port, "write", full)
    robot.stop("limp", Hurry())
    assert held(arm, "Torque_Enable") == [0] * 6
    assert held(arm, "Torque_Limit") == [1000] * 5 + [500]
    assert "while the arm was let go, the line failed 12 times, at last: takes no more bytes" in caplog.messages


def test_a_lost_echo_does_not_leave_torque_on(stage: Stage) -> None:
    """Nor does it end a start: once the line has echoed, an echo that does not come was lost."""
    stage.arm.inject({"fault": "echo"})
    stage.robot._bus = Bus(stage.port, echo=True)
    assert stage.robot._bus.ping(1)
    stage.arm.inject({"fault": "lost_echo", "rate": 0.2})
    stage.robot.prepare()
    assert held(stage.arm, "Torque_Enable") == [1] * 6
    stage.robot.stop("limp", Hurry())
    assert held(stage.arm, "Torque_Enable") == [0] * 6


def test_what_did_not_confirm_keeps_no_force_from_the_others_and_can_be_stopped_again(stage: Stage) -> None:
    robot, arm = stage.robot, stage.arm
    robot.prepare()
    arm.inject({"fault": "deaf", "ids": [3]})
    with pytest.raises(BusError, match=r"torque may still be on: elbow_flex \(id 3\)"):
        robot.stop("limp", Hurry())
    others = [index for index in range(6) if index != 2]
    assert [held(arm, "Torque_Enable")[index] for index in others] == [0] * 5
    assert [held(arm, "Torque_Limit")[index] for index in others] == [1000] * 4 + [500]
    assert held(arm, "Torque_Enable")[2] == 1
    arm.inject({"fault": "clear"})
    robot.stop("limp", Hurry())
    assert held(arm, "Torque_Enable") == [0] * 6
    assert held(arm, "Torque_Limit") == [1000] * 5 + [500]


def test_torque_off_is_repeated_for_as_long_as_a_limp_may_take(stage: Stage) -> None:
    robot, arm, clock = stage.robot, stage.arm, stage.clock
    robot.prepare()
    arm.inject({"fault": "deaf", "ids": [3], "count": 25})  # longer than any fixed number of tries
    began = clock.seconds
    robot.stop("limp", Hurry())
    assert held(arm, "Torque_Enable") == [0] * 6
    assert clock.seconds - began <= LIMP_S
