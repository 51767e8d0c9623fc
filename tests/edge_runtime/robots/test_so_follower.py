"""The SO follower on a pty: refused when it is not the right arm, started without a blow, lent to the loop."""

import itertools
import logging
import threading
from typing import Any

import numpy as np
import pytest

from edge_runtime._realtime import ActionRing, ActuatorLoop
from edge_runtime.config import SO101FollowerConfig
from edge_runtime.errors import BusError, ConfigError
from edge_runtime.motors.calibration import JOINTS
from edge_runtime.robots import make_robot
from edge_runtime.robots.so_follower import SOFollower
from edge_runtime.virtual_arm.bus import VirtualBus
from edge_runtime.wire.messages import Joint
from tests.edge_runtime.robots.bench import CALM, POSE, Hurry, Time, held, sequence

# What it is.


def test_joints_units_and_limits(config: SO101FollowerConfig) -> None:
    robot = make_robot(config)
    assert isinstance(robot, SOFollower)
    units = ["degrees"] * 5 + ["percent"]
    assert robot.joints == tuple(Joint(f"{name}.pos", unit) for name, unit in zip(JOINTS, units, strict=True))
    assert robot.lower == pytest.approx([-110.07, -100.04, -96.88, -95.03, -180, 0], abs=0.01)
    assert robot.upper == pytest.approx([110.07, 100.04, 96.88, 95.03, 180, 100], abs=0.01)
    config.use_degrees = False
    robot = make_robot(config)
    assert [joint.unit for joint in robot.joints] == ["normalized"] * 5 + ["percent"]
    assert robot.lower.tolist() == [-100] * 5 + [0]


# Opening.


def test_opening_changes_nothing(robot: SOFollower, arm: VirtualBus) -> None:
    assert not [entry for entry in arm.log if "WRITE" in entry.instruction]
    degrees = (np.array(POSE[:4]) - 2048) * 360 / 4095
    assert robot.read()[:4] == pytest.approx(degrees)


def test_no_supply(config: SO101FollowerConfig, arm: VirtualBus) -> None:
    arm.inject({"fault": "power", "on": False})
    with pytest.raises(BusError, match=r"none of the six servos answers: is the 12 V supply on\?$") as caught:
        SOFollower(config).open()
    assert caught.value.exit_code == 74
    arm.inject({"fault": "clear"})
    SOFollower(config).open()  # the failed one did not keep the port


def test_noise_is_no_servo_bus(config: SO101FollowerConfig, arm: VirtualBus) -> None:
    arm.inject({"fault": "truncate"})
    with pytest.raises(BusError, match="none of the six servos answers, and what it says is no servo's frame"):
        SOFollower(config).open()


def test_a_line_slower_than_most_is_waited_for_as_long_as_told(config: SO101FollowerConfig, arm: VirtualBus) -> None:
    arm.inject({"fault": "late", "delay_s": 0.06})
    config.bus_timeout_ms = 100.0
    with SOFollower(config) as robot:
        assert robot.read()[0] == pytest.approx((POSE[0] - 2048) * 360 / 4095)


def test_missing_servos_are_named(config: SO101FollowerConfig, arm: VirtualBus) -> None:
    arm.inject({"fault": "silent", "ids": [2, 6]})
    expected = r"no answer from shoulder_lift \(id 2\), gripper \(id 6\); of six servos 4 answer"
    with pytest.raises(BusError, match=expected) as caught:
        SOFollower(config).open()
    assert caught.value.motor == 2


@pytest.mark.parametrize(("model", "name"), [(2825, "STS3250"), (1284, "SCS0009"), (5, "unknown")])
def test_other_models_are_refused(config: SO101FollowerConfig, arm: VirtualBus, model: int, name: str) -> None:
    arm.inject({"fault": "register", "ids": [4], "name": "Model_Number", "value": model})
    expected = rf"wrist_flex \(id 4\) is model {model} \({name}\), expected 777 \(STS3215\)"
    with pytest.raises(BusError, match=expected):
        SOFollower(config).open()


def test_mixed_firmware_is_refused(config: SO101FollowerConfig, arm: VirtualBus) -> None:
    arm.inject({"fault": "register", "ids": [5], "name": "Firmware_Minor_Version", "value": 9})
    with pytest.raises(BusError, match=r"different firmware: shoulder_pan \(id 1\) 3\.10, .*wrist_roll \(id 5\) 3\.9"):
        SOFollower(config).open()


def test_another_calibration_is_refused_and_can_be_written(config: SO101FollowerConfig, arm: VirtualBus) -> None:
    arm.servos[3].set("Homing_Offset", -85)
    arm.servos[6].set("Max_Position_Limit", 3000)
    with pytest.raises(ConfigError) as caught:
        SOFollower(config).open()
    assert caught.value.exit_code == 78
    assert "elbow_flex.homing_offset: file 0, servo -85; gripper.range_max: file 3186, servo 3000" in str(caught.value)
    assert "--robot.write_calibration=true" in str(caught.value)
    config.write_calibration = True
    with SOFollower(config) as robot:
        assert not arm.log.writes("Homing_Offset")
        robot.prepare()
    assert held(arm, "Homing_Offset") == [0] * 6
    assert arm.servos[6].get("Max_Position_Limit") == 3186
    assert [list(entry.values) for entry in arm.log.writes("Homing_Offset")] == [[3]]  # only where it differed
    for servo in arm.servos.values():
        servo.power_cycle()
    assert held(arm, "Homing_Offset") == [0] * 6  # it is in memory
    config.write_calibration = False
    SOFollower(config).open()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"port": ""}, r"robot\.port: not given; serial adapters here: "),
        ({"id": "vitrual"}, "did you mean 'virtual'"),
        ({"rest_pose": {"elbow": 0}}, r"robot\.rest_pose\.elbow: is no joint of this arm; did you mean elbow_flex"),
        ({"rest_pose": {"elbow_flex": 120}}, r"rest_pose\.elbow_flex: 120 is not in -96\.9\.\.96\.9 degrees"),
        ({"rest_pose": {"gripper": float("nan")}}, r"rest_pose\.gripper: nan is not in 0\.0\.\.100\.0 percent"),
    ],
)
def test_wrong_settings_are_named(config: SO101FollowerConfig, settings: dict[str, Any], message: str) -> None:
    for name, value in settings.items():
        setattr(config, name, value)
    with pytest.raises(ConfigError, match=message):
        make_robot(config)


# Starting.


def test_a_stale_goal_is_replaced_before_torque(robot: SOFollower, arm: VirtualBus) -> None:
    arm.inject({"fault": "register", "name": "Goal_Position", "value": 3000})
    robot.prepare()
    registers = ("Present_Position", "Goal_Position", "Torque_Enable")
    assert sequence(arm, *registers)[-6:] == [
        "read Present_Position",
        "write Goal_Position",
        "read Goal_Position",  # it did arrive
        "read Present_Position",  # and the arm is there still
        "write Torque_Enable",
        "read Torque_Enable",
    ]
    assert held(arm, "Goal_Position") == POSE
    assert held(arm, "Torque_Enable") == [1] * 6
    assert arm.positions().tolist() == POSE


def test_a_goal_that_does_not_arrive_keeps_torque_off(
    robot: SOFollower, arm: VirtualBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    servo = arm.servos[2]
    servo.set("Goal_Position", 3000)
    write = servo.write
    monkeypatch.setattr(servo, "write", lambda address, data: None if address == 42 else write(address, data))
    with pytest.raises(BusError, match=r"Goal_Position could not be set: shoulder_lift \(id 2\) has 3000, not 1900"):
        robot.prepare()
    assert held(arm, "Torque_Enable") == [0] * 6


def test_the_present_position_is_returned_in_units(robot: SOFollower) -> None:
    pose = robot.prepare()
    assert pose.dtype == np.float64
    assert pose == pytest.approx(robot.read())
    assert pose[5] == pytest.approx((2500 - 1934) / (3186 - 1934) * 100)


def test_memory_is_set_as_lerobot_sets_it(robot: SOFollower, arm: VirtualBus) -> None:
    arm.inject({"fault": "register", "name": "Phase", "value": 28})
    robot.prepare()
    for servo in arm.servos.values():
        servo.power_cycle()  # all of it is kept
    for name, values in {
        "Return_Delay_Time": [0] * 6,
        "Phase": [12] * 6,
        "Operating_Mode": [0] * 6,
        "P_Coefficient": [16] * 6,
        "I_Coefficient": [0] * 6,
        "D_Coefficient": [32] * 6,
        "Maximum_Acceleration": [254] * 6,
        "Max_Torque_Limit": [1000] * 5 + [500],
        "Protection_Current": [500] * 5 + [250],
        "Overload_Torque": [80] * 5 + [25],
    }.items():
        assert held(arm, name) == values, name


def test_torque_limit_gripper_included_is_in_use_at_once(robot: SOFollower, arm: VirtualBus) -> None:
    robot.prepare()
    assert held(arm, "Torque_Limit") == [1000] * 5 + [500]
    assert held(arm, "Acceleration") == [254] * 6
    assert held(arm, "Lock") == [1] * 6


def test_an_arm_that_is_set_up_keeps_its_torque(config: SO101FollowerConfig, arm: VirtualBus, clock: Time) -> None:
    with SOFollower(config, clock) as robot:
        robot.prepare()
        robot.stop("hold", CALM)
    assert held(arm, "Torque_Enable") == [1] * 6
    arm.log.clear()
    with SOFollower(config, clock) as robot:
        robot.prepare()
        assert not arm.log.writes("Torque_Enable")
        assert not arm.log.writes("Torque_Limit")
        assert not arm.log.writes("P_Coefficient")
        config.position_p_coefficient = 20
    arm.log.clear()
    with SOFollower(config, clock) as robot:
        robot.prepare()
        words = sequence(arm, "Torque_Limit", "Torque_Enable", "P_Coefficient")
        first, off = words.index("write Torque_Limit"), words.index("write Torque_Enable")
        assert first < off < words.index("write P_Coefficient")  # it is let down, not dropped
        assert words[-4:-2] == ["write Torque_Limit", "write Torque_Enable"]


def test_torque_that_is_on_with_another_goal_moves_nothing(
    robot: SOFollower, arm: VirtualBus, caplog: pytest.LogCaptureFixture
) -> None:
    """The arm has sunk below a goal of before, with little force; a servo misses two answers on the way."""
    robot.prepare()
    robot.stop("limp", Hurry())
    arm.place([*POSE[:1], 2958, *POSE[2:]])  # it lies on the table
    for servo in arm.servos.values():
        servo.set("Torque_Enable", 1)
        servo.set("Torque_Limit", 0)
    arm.servos[2].set("Goal_Position", 1900)
    arm.inject({"fault": "silent", "ids": [2], "count": 2})
    arm.log.clear()
    robot.prepare()
    goals = [entry.time_s for entry in arm.log.writes("Goal_Position")]
    assert max(goals) <= min(entry.time_s for entry in arm.log.writes("Torque_Limit"))
    assert arm.positions()[1] == 2958
    told = "torque was on, with goals away from the arm: shoulder_lift (id 2) by -93.0°; the arm stays where it is"
    assert told in caplog.messages


def test_an_arm_that_still_sinks_is_not_given_force(robot: SOFollower, arm: VirtualBus) -> None:
    """It would be above its goal by as much as it came down since it was read: first it comes to rest."""
    robot.prepare()
    arm.inject({"fault": "register", "name": "Torque_Enable", "value": 0})
    assert arm.positions()[1] == POSE[1]
    robot.prepare()
    assert arm.positions()[1] == held(arm, "Goal_Position")[1] == 2958  # on the table


def test_an_arm_that_is_moved_is_not_given_force(robot: SOFollower, arm: VirtualBus) -> None:
    robot.prepare()
    arm.inject({"fault": "register", "name": "Torque_Enable", "value": 0})
    arm.inject({"fault": "push", "ids": [1], "force": 0.1})
    with pytest.raises(BusError, match=r"shoulder_pan \(id 1\) does not keep still: hold the arm"):
        robot.prepare()
    assert held(arm, "Torque_Enable") == [0] * 6


@pytest.mark.parametrize("lie", [3000, 5800])
def test_one_reading_is_not_made_the_goal(
    robot: SOFollower, arm: VirtualBus, monkeypatch: pytest.MonkeyPatch, lie: int
) -> None:
    """A damaged frame may pass its checksum: here every third reading is one."""
    servo = arm.servos[2]
    read, asked = servo.read, itertools.count()

    def damaged(address: int, count: int) -> bytes:
        if (address, count) == (56, 2) and next(asked) % 3 == 0:
            return lie.to_bytes(2, "little")
        return read(address, count)

    monkeypatch.setattr(servo, "read", damaged)
    robot.prepare()
    assert {entry.values[2]["Goal_Position"] for entry in arm.log.writes("Goal_Position")} == {POSE[1]}


def test_positions_that_never_agree_are_refused(
    robot: SOFollower, arm: VirtualBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    servo = arm.servos[2]
    read, asked = servo.read, itertools.count(1000, 500)
    monkeypatch.setattr(
        servo,
        "read",
        lambda address, count: (
            (next(asked) % 4000).to_bytes(2, "little") if (address, count) == (56, 2) else read(address, count)
        ),
    )
    with pytest.raises(
        BusError, match=r"shoulder_lift \(id 2\) does not keep still, or its positions cannot be trusted"
    ):
        robot.prepare()
    assert held(arm, "Torque_Enable") == [0] * 6


def test_a_start_outside_the_range_is_led_in_slowly(config: SO101FollowerConfig, arm: VirtualBus, clock: Time) -> None:
    config.max_speed = 30.0
    arm.place([700, *POSE[1:]])  # 8 degrees below 796
    with SOFollower(config, clock) as robot:
        began = clock.seconds
        pose = robot.prepare()
    assert arm.positions()[0] == pytest.approx(796, abs=12)
    assert clock.seconds - began == pytest.approx(8.4 / 30, abs=0.1)
    assert pose[0] == robot.lower[0]  # the loop goes on from the end of the range
    goals = [entry.values[1]["Goal_Position"] for entry in arm.log.writes("Goal_Position") if 1 in entry.values]
    assert np.abs(np.diff(goals)).max() <= 30 * 0.02 / 360 * 4095 + 1
    on = next(entry.time_s for entry in arm.log.writes("Torque_Enable") if entry.values[1]["Torque_Enable"])
    speeds = [(entry.time_s, entry.values[1]["Goal_Velocity"]) for entry in arm.log.writes("Goal_Velocity")]
    assert [speed for _, speed in speeds] == [30 * 4095 // 360, 0]  # the servo's own limit, and then none
    assert speeds[0][0] <= on < speeds[1][0]
    forces = [entry.values[1]["Torque_Limit"] for entry in arm.log.writes("Torque_Limit")]
    assert forces == [400, 1000]


def test_a_joint_that_cannot_be_led_in_is_let_go_of(
    robot: SOFollower, arm: VirtualBus, clock: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm.place([700, *POSE[1:]])
    monkeypatch.setattr(arm.servos[1], "advance", lambda now, felt: None)  # it is blocked
    with pytest.raises(BusError, match=r"shoulder_pan \(id 1\) is outside its .* cannot be led in: free it"):
        robot.prepare()
    assert held(arm, "Torque_Limit")[0] == 400
    robot.stop("limp", Hurry())
    assert held(arm, "Torque_Enable") == [0] * 6


def test_a_start_that_is_asked_to_stop_leads_nothing_in(robot: SOFollower, arm: VirtualBus, clock: Time) -> None:
    arm.place([700, *POSE[1:]])
    stop = threading.Event()
    stop.set()
    robot.prepare(stop=stop)
    assert held(arm, "Torque_Limit")[0] == 400
    assert held(arm, "Goal_Velocity")[0] > 0


def test_a_start_far_outside_the_range_is_refused(robot: SOFollower, arm: VirtualBus) -> None:
    arm.place([396, *POSE[1:]])
    expected = r"shoulder_pan \(id 1\) is 35° outside its calibrated range, and no more than 20° are safe: move it"
    with pytest.raises(BusError, match=expected):
        robot.prepare()
    assert held(arm, "Torque_Enable") == [0] * 6


def test_a_rest_pose_from_a_start_outside_the_range_is_inside(robot: SOFollower, arm: VirtualBus) -> None:
    arm.place([700, *POSE[1:]])
    robot.prepare()
    assert robot.stop_plan("park").axes[0].rest == pytest.approx(796, abs=1)


def test_flags_are_told_and_do_not_stop_the_start(
    robot: SOFollower, arm: VirtualBus, caplog: pytest.LogCaptureFixture
) -> None:
    arm.inject({"fault": "flags", "ids": [6], "bits": "voltage"})
    robot.prepare()
    assert "gripper (id 6) reports voltage" in caplog.messages
    assert robot.report()["joints"]["gripper"]["errors"] == "voltage"


# The loop's turn.


def test_the_loop_owns_the_bus_until_stop(robot: SOFollower, arm: VirtualBus, clock: Time) -> None:
    present = robot.prepare()
    port = robot.port(1 / 30)
    robot.lend()
    assert [port.to_raw(index, units) for index, units in enumerate(present)] == POSE
    with pytest.raises(BusError, match="the loop owns the bus"):
        robot.read()
    assert robot.report() == {
        "joints": {name: {"id": number, "misses": 0, "errors": ""} for number, name in enumerate(JOINTS, start=1)},
        "bad_frames": 0,
        "stray_bytes": 0,
    }
    robot.stop("limp", Hurry())
    assert held(arm, "Torque_Enable") == [0] * 6


def test_the_loop_moves_the_arm_and_its_counts_are_reported(
    robot: SOFollower, config: SO101FollowerConfig, arm: VirtualBus, clock: Time
) -> None:
    config.bus_timeout_ms = 100.0
    present = robot.prepare()
    ring = ActionRing(10, 6, (0.0, 1.0))
    loop = ActuatorLoop(ring, robot.port(1 / 30), fps=30, lower=robot.lower, upper=robot.upper, max_speed=300.0)
    robot.lend()
    loop.prime(present)
    ring.open_session(1, clear=True)
    goal = present + 5.0
    ring.merge(0, np.tile(goal, (10, 1)).astype(np.float32), 1)
    arm.inject({"fault": "silent", "ids": [4]})
    arm.inject({"fault": "flags", "ids": [6], "bits": "overload"})
    for tick in range(3):
        loop.tick(tick * 33_333_333)
        clock.seconds += 1 / 30
    report = robot.report()
    assert report["joints"]["wrist_flex"]["misses"] == 3
    assert report["joints"]["gripper"]["errors"] == "overload"
    arm.inject({"fault": "clear"})
    for tick in range(3, 15):  # the bus hears of a goal when its thread comes to it, which may be a tick later
        loop.tick(tick * 33_333_333)
        clock.seconds += 1 / 30
    assert loop.record.positions[:3] == pytest.approx(goal[:3], abs=0.1)
    robot.stop("limp", Hurry())
    assert held(arm, "Torque_Enable") == [0] * 6


def test_importing_a_robot_leaves_logging_alone() -> None:
    assert not logging.getLogger("edge_runtime").handlers
    assert not logging.getLogger("edge_runtime.robots.so_follower").handlers
