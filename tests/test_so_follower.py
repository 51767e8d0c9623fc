"""The SO follower on a pty: started without a blow, refused when it is not the right arm, and always let go of."""

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
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
from edge_runtime.virtual_arm.calibration import write_calibration
from edge_runtime.wire.messages import Joint

IDS = range(1, 7)
POSE = [1500, 1900, 2100, 2200, 2300, 2500]
CALM = threading.Event()  # never set


class Time:
    """A clock that moves only when somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Hurry(threading.Event):
    """Waiting takes no time but the clock's; set by itself at `at`."""

    def __init__(self, clock: Time, at: float = 1e9) -> None:
        super().__init__()
        self._clock, self._at = clock, at

    def wait(self, timeout: float | None = None) -> bool:
        self._clock.now += timeout or 0.0
        if self._clock.now >= self._at:
            self.set()
        return self.is_set()


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def arm(clock: Time) -> Iterator[VirtualBus]:
    with VirtualBus(clock=clock, seed=1) as arm:
        arm.place(POSE)
        yield arm


@pytest.fixture
def config(arm: VirtualBus, tmp_path: Path) -> SO101FollowerConfig:
    write_calibration(tmp_path, "virtual")
    return SO101FollowerConfig(id="virtual", port=arm.path, calibration_dir=tmp_path)


@pytest.fixture
def robot(config: SO101FollowerConfig, clock: Time) -> Iterator[SOFollower]:
    with SOFollower(config, clock) as robot:
        yield robot


def sequence(arm: VirtualBus, *registers: str) -> list[str]:
    """The instructions on the bus that concern `registers`, runs of the same in one."""
    words = [
        f"{'write' if 'WRITE' in entry.instruction else 'read'} {register}"
        for entry in arm.log
        for register in entry.registers
        if entry.request is None and register in registers
    ]
    return [word for before, word in zip(["", *words], words, strict=False) if word != before]


def held(arm: VirtualBus, name: str) -> list[int]:
    return [servo.get(name) for servo in arm.servos.values()]


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
    assert sequence(arm, *registers)[-5:] == [
        "read Present_Position",
        "write Goal_Position",
        "read Goal_Position",  # it did arrive
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
        assert [entry.values[1] for entry in arm.log.writes("Torque_Enable")] == [{"Torque_Enable": 1}]
        assert not arm.log.writes("P_Coefficient")
        config.position_p_coefficient = 20
    arm.log.clear()
    with SOFollower(config, clock) as robot:
        robot.prepare()
        assert sequence(arm, "Torque_Enable", "P_Coefficient")[1:] == [
            "write Torque_Enable",  # off
            "read Torque_Enable",
            "write P_Coefficient",
            "read P_Coefficient",
            "write Torque_Enable",  # on
            "read Torque_Enable",
        ]


def test_a_position_outside_the_range_is_told(
    robot: SOFollower, arm: VirtualBus, caplog: pytest.LogCaptureFixture
) -> None:
    arm.place([700, *POSE[1:]])
    robot.prepare()
    assert "shoulder_pan is 96 ticks outside its calibrated range, and moves into it now" in caplog.messages


def test_flags_are_told_and_do_not_stop_the_start(
    robot: SOFollower, arm: VirtualBus, caplog: pytest.LogCaptureFixture
) -> None:
    arm.inject({"fault": "flags", "ids": [6], "bits": "voltage"})
    robot.prepare()
    assert "gripper (id 6) reports voltage" in caplog.messages
    assert robot.report()["joints"]["gripper"]["errors"] == "voltage"


# Stopping.


def test_limp_ramps_then_lets_go(robot: SOFollower, arm: VirtualBus, clock: Time) -> None:
    robot.prepare()
    arm.log.clear()
    began = clock.now
    robot.stop("limp", Hurry(clock))
    assert clock.now - began == pytest.approx(0.5)
    ramp = [entry.values for entry in arm.log.writes("Torque_Limit")]
    assert [values[1]["Torque_Limit"] for values in ramp] == [900, 800, 700, 600, 500, 400, 300, 200, 100, 0, 1000]
    assert [values[6]["Torque_Limit"] for values in ramp] == [450, 400, 350, 300, 250, 200, 150, 100, 50, 0, 500]
    words = sequence(arm, "Torque_Limit", "Torque_Enable")
    assert words[:3] == ["write Torque_Limit", "write Torque_Enable", "read Torque_Enable"]
    assert held(arm, "Torque_Enable") == [0] * 6
    assert held(arm, "Torque_Limit") == [1000] * 5 + [500]  # the next program finds an arm with force


def test_hurry_skips_the_ramp(robot: SOFollower, arm: VirtualBus, clock: Time) -> None:
    robot.prepare()
    arm.log.clear()
    robot.stop("limp", Hurry(clock, at=clock.now + 0.12))  # while it is under way
    assert [entry.values[1]["Torque_Limit"] for entry in arm.log.writes("Torque_Limit")] == [900, 800, 1000]
    assert held(arm, "Torque_Enable") == [0] * 6


@pytest.mark.parametrize("policy", ["limp", "park", "hold"])
def test_hurry_means_limp_at_once_whatever_the_policy(
    robot: SOFollower, arm: VirtualBus, clock: Time, policy: Any
) -> None:
    robot.prepare()
    arm.log.clear()
    hurry = Hurry(clock)
    hurry.set()
    robot.stop(policy, hurry)
    assert sequence(arm, "Torque_Enable", "Goal_Position")[0] == "write Torque_Enable"
    assert held(arm, "Torque_Enable") == [0] * 6
    assert clock.now < 0.1


@pytest.mark.parametrize("ids", [[3], list(IDS)])
@pytest.mark.parametrize("bits", ["overload", "over-temperature", "voltage"])
def test_flags_do_not_keep_torque_on(
    robot: SOFollower, arm: VirtualBus, clock: Time, ids: list[int], bits: str
) -> None:
    robot.prepare()
    arm.inject({"fault": "flags", "ids": ids, "bits": bits})
    robot.stop("limp", Hurry(clock))
    assert held(arm, "Torque_Enable") == [0] * 6


def test_torque_off_goes_to_all_before_anything_is_verified(robot: SOFollower, arm: VirtualBus, clock: Time) -> None:
    robot.prepare()
    arm.inject({"fault": "silent", "ids": [1]})
    with pytest.raises(BusError, match=r"Torque_Enable could not be set: shoulder_pan \(id 1\) did not confirm"):
        robot.stop("limp", Hurry(clock))
    assert held(arm, "Torque_Enable") == [0] * 6


def test_a_torque_off_that_was_lost_is_repeated(robot: SOFollower, arm: VirtualBus, clock: Time) -> None:
    robot.prepare()
    arm.log.clear()
    hurry = Hurry(clock)
    hurry.set()
    arm.inject({"fault": "deaf", "ids": [4], "count": 2})
    robot.stop("limp", hurry)
    assert [list(entry.values) for entry in arm.log.writes("Torque_Enable")] == [[1, 2, 3, 4, 5, 6], [4]]
    assert held(arm, "Torque_Enable") == [0] * 6


def test_a_noisy_line_is_let_go_of_too(robot: SOFollower, arm: VirtualBus, clock: Time) -> None:
    robot.prepare()
    for fault in ("corrupt", "silent", "junk", "foreign"):
        arm.inject({"fault": fault, "rate": 0.1})
    robot.stop("limp", Hurry(clock))
    assert held(arm, "Torque_Enable") == [0] * 6


def test_park_goes_to_the_pose_at_start_slowly_then_limp(robot: SOFollower, arm: VirtualBus, clock: Time) -> None:
    robot.prepare()
    away = [goal + 400 for goal in POSE[:5]] + [2100]
    robot._bus.establish("Goal_Position", dict(zip(IDS, away, strict=True)))
    clock.now += 2.0
    assert arm.positions().tolist() == away
    arm.log.clear()
    robot.stop("park", Hurry(clock))
    goals = [entry.values[1]["Goal_Position"] for entry in arm.log.writes("Goal_Position")]
    assert goals[0] <= away[0]
    assert np.all(np.diff(goals) <= 0)
    assert np.abs(np.diff(goals)).max() <= 60 * 0.02 / 360 * 4095 + 1  # 60 degrees a second
    assert arm.positions() == pytest.approx(POSE, abs=23)
    assert held(arm, "Torque_Enable") == [0] * 6


def test_park_obeys_a_rest_pose_and_a_lower_speed(config: SO101FollowerConfig, arm: VirtualBus, clock: Time) -> None:
    config.rest_pose, config.max_speed = {"shoulder_pan": 0.0}, 20.0
    with SOFollower(config, clock) as robot:
        robot.prepare()
        began = clock.now
        robot.stop("park", Hurry(clock))
    assert clock.now - began == pytest.approx((2048 - 1500) * 360 / 4095 / 20 + 0.5, abs=0.25)
    assert arm.positions() == pytest.approx([2048, *POSE[1:]], abs=23)


def test_park_gives_up_in_time(
    config: SO101FollowerConfig, arm: VirtualBus, clock: Time, caplog: pytest.LogCaptureFixture
) -> None:
    config.rest_pose, config.park_timeout_s = {"shoulder_pan": 110.0}, 1.0
    with SOFollower(config, clock) as robot:
        robot.prepare()
        began = clock.now
        robot.stop("park", Hurry(clock))
    assert clock.now - began == pytest.approx(1.5, abs=0.1)
    assert "not at rest after 1.0 s: the arm is let go where it is" in caplog.messages
    assert held(arm, "Torque_Enable") == [0] * 6


def test_park_is_cut_short_by_hurry(config: SO101FollowerConfig, arm: VirtualBus, clock: Time) -> None:
    config.rest_pose = {"shoulder_pan": 110.0}
    with SOFollower(config, clock) as robot:
        robot.prepare()
        began = clock.now
        robot.stop("park", Hurry(clock, at=began + 0.3))
    assert clock.now - began < 0.4
    assert held(arm, "Torque_Enable") == [0] * 6


def test_park_leaves_a_dead_servo_alone(config: SO101FollowerConfig, arm: VirtualBus, clock: Time) -> None:
    config.rest_pose = {"shoulder_pan": -40.0}
    with SOFollower(config, clock) as robot:
        robot.prepare()
        arm.inject({"fault": "silent", "ids": [5]})
        with pytest.raises(BusError, match="wrist_roll"):
            robot.stop("park", Hurry(clock))
    assert arm.positions()[0] == pytest.approx(2048 - 455, abs=23)
    assert held(arm, "Torque_Enable") == [0] * 6
    assert all(5 not in entry.values for entry in arm.log.writes("Goal_Position")[1:])


def test_hold_leaves_torque_on_and_can_be_ended_later(robot: SOFollower, arm: VirtualBus, clock: Time) -> None:
    robot.prepare()
    arm.log.clear()
    robot.stop("hold", CALM)
    assert not list(arm.log)
    assert held(arm, "Torque_Enable") == [1] * 6
    robot.stop("limp", Hurry(clock))
    assert held(arm, "Torque_Enable") == [0] * 6


def test_stopping_twice_or_before_the_start_is_harmless(robot: SOFollower, arm: VirtualBus, clock: Time) -> None:
    before = len(arm.log)
    robot.stop("limp", Hurry(clock))
    assert len(arm.log) == before  # a dry run touches nothing
    robot.prepare()
    robot.stop("limp", Hurry(clock))
    before = len(arm.log)
    robot.stop("limp", Hurry(clock))
    assert len(arm.log) == before
    robot.close()
    robot.close()
    robot.stop("limp", Hurry(clock))


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
    robot.stop("limp", Hurry(clock))
    assert held(arm, "Torque_Enable") == [0] * 6


def test_a_pulled_cable_is_said_once_and_plainly(robot: SOFollower, arm: VirtualBus, clock: Time) -> None:
    robot.prepare()
    arm.inject({"fault": "unplug"})
    expected = "the port is gone.*hold their last goal until their supply is cut"
    with pytest.raises(BusError, match=expected):
        robot.stop("limp", Hurry(clock))
    robot.stop("limp", Hurry(clock))
    robot.close()


# The loop's turn.


def test_the_loop_owns_the_bus_until_stop(robot: SOFollower, arm: VirtualBus, clock: Time) -> None:
    present = robot.prepare()
    port = robot.port(1 / 30)
    assert [port.to_raw(index, units) for index, units in enumerate(present)] == POSE
    with pytest.raises(BusError, match="the loop owns the bus"):
        robot.read()
    assert robot.report() == {
        "joints": {name: {"id": number, "misses": 0, "errors": ""} for number, name in enumerate(JOINTS, start=1)},
        "bad_frames": 0,
        "stray_bytes": 0,
    }
    robot.stop("limp", Hurry(clock))
    assert held(arm, "Torque_Enable") == [0] * 6


def test_the_loop_moves_the_arm_and_its_counts_are_reported(
    robot: SOFollower, config: SO101FollowerConfig, arm: VirtualBus, clock: Time
) -> None:
    config.bus_timeout_ms = 100.0
    present = robot.prepare()
    ring = ActionRing(10, 6, (0.0, 1.0))
    loop = ActuatorLoop(ring, robot.port(1 / 30), fps=30, lower=robot.lower, upper=robot.upper, max_speed=300.0)
    loop.prime(present)
    ring.open_session(1, clear=True)
    goal = present + 5.0
    ring.merge(0, np.tile(goal, (10, 1)).astype(np.float32), 1)
    arm.inject({"fault": "silent", "ids": [4]})
    arm.inject({"fault": "flags", "ids": [6], "bits": "overload"})
    for tick in range(3):
        loop.tick(tick * 33_333_333)
        clock.now += 1 / 30
    report = robot.report()
    assert report["joints"]["wrist_flex"]["misses"] == 3
    assert report["joints"]["gripper"]["errors"] == "overload"
    arm.inject({"fault": "clear"})
    assert loop.record.positions[0] > present[0]
    robot.stop("limp", Hurry(clock))
    assert robot.read()[:3] == pytest.approx(goal[:3], abs=0.1)


def test_importing_a_robot_leaves_logging_alone() -> None:
    assert not logging.getLogger("edge_runtime").handlers
    assert not logging.getLogger("edge_runtime.robots.so_follower").handlers
