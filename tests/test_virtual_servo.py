"""One virtual STS3215: how it moves, what it remembers, and what it lets nobody write."""

import pytest

from edge_runtime.motors.feetech import REGISTERS, encode
from edge_runtime.virtual_arm.servos import VirtualServo


@pytest.fixture
def servo() -> VirtualServo:
    servo = VirtualServo(1, now=0.0)
    put(servo, "Torque_Enable", 1)
    return servo


def put(servo: VirtualServo, name: str, value: int) -> None:
    servo.write(REGISTERS[name].address, encode(name, value))


def run(servo: VirtualServo, to: float) -> float:
    """Let it move alone until `to`; where it is."""
    servo.advance(to)
    servo.shaft = servo.setpoint
    return servo.shaft


def test_goes_at_3400_counts_a_second_at_most(servo: VirtualServo) -> None:
    put(servo, "Goal_Position", 4000)
    assert run(servo, 0.1) == pytest.approx(2048 + 340, abs=1)
    assert servo.get("Moving") == 1
    assert servo.get("Present_Velocity") == 3400
    assert run(servo, 1.0) == 4000
    assert servo.get("Moving") == 0


def test_goal_speed_and_acceleration_are_honoured(servo: VirtualServo) -> None:
    put(servo, "Goal_Velocity", 500)
    put(servo, "Acceleration", 10)  # 1000 counts/s^2: half a second to full speed, 125 counts
    put(servo, "Goal_Position", 3048)
    assert run(servo, 0.25) == pytest.approx(2048 + 31, abs=3)
    assert run(servo, 0.5) == pytest.approx(2048 + 125, abs=5)
    assert run(servo, 1.0) == pytest.approx(2048 + 375, abs=5)
    arrival = 1.0 + (1000 - 125 - 375) / 500 + 0.5  # brakes as it started
    assert run(servo, arrival - 0.1) < 3048
    assert run(servo, arrival + 0.1) == 3048


def test_a_braking_profile_does_not_overshoot_and_turns_round(servo: VirtualServo) -> None:
    put(servo, "Acceleration", 50)
    put(servo, "Goal_Position", 2548)
    path = [run(servo, step * 0.01) for step in range(200)]
    assert max(path) <= 2548
    put(servo, "Goal_Position", 3500)
    ahead = run(servo, 2.2)
    put(servo, "Goal_Position", 2048)
    assert run(servo, 2.25) > ahead  # it cannot stop at once
    assert run(servo, 10.0) == 2048


def test_goals_are_held_inside_the_limits(servo: VirtualServo) -> None:
    servo.set("Min_Position_Limit", 1800)
    servo.set("Max_Position_Limit", 2300)
    put(servo, "Goal_Position", 4000)
    assert run(servo, 5.0) == 2300
    put(servo, "Goal_Position", -100)
    assert run(servo, 10.0) == 1800
    servo.set("Min_Position_Limit", 0)
    servo.set("Max_Position_Limit", 0)  # many turns
    put(servo, "Goal_Position", -100)
    assert run(servo, 20.0) == -100


def test_without_torque_it_stays(servo: VirtualServo) -> None:
    put(servo, "Torque_Enable", 0)
    put(servo, "Goal_Position", 3000)
    assert run(servo, 5.0) == 2048
    put(servo, "Torque_Enable", 1)
    put(servo, "Torque_Limit", 0)
    assert run(servo, 6.0) == 2048
    put(servo, "Torque_Limit", 250)
    assert servo.torque == 0.25
    assert run(servo, 10.0) == 3000


def test_flags_release_torque_as_the_unload_condition_says(servo: VirtualServo) -> None:
    servo.flags = 1  # voltage
    assert servo.torque == 1.0
    servo.flags = 32  # overload
    assert servo.torque == 0.0


def test_reported_position_is_shaft_less_offset(servo: VirtualServo) -> None:
    put(servo, "Homing_Offset", -85)
    assert servo.get("Present_Position") == 2048 + 85
    put(servo, "Goal_Position", 3000)
    assert run(servo, 5.0) == 3000 - 85


def test_128_makes_the_present_position_the_middle(servo: VirtualServo) -> None:
    put(servo, "Goal_Position", 2500)
    run(servo, 5.0)
    servo.write(REGISTERS["Torque_Enable"].address, b"\x80")
    assert servo.get("Present_Position") == 2048
    assert servo.get("Homing_Offset") == 2500 - 2048


def test_memory_is_kept_only_when_unlocked(servo: VirtualServo) -> None:
    put(servo, "Lock", 0)
    put(servo, "P_Coefficient", 16)
    put(servo, "Lock", 1)
    put(servo, "I_Coefficient", 7)
    put(servo, "Max_Torque_Limit", 500)
    assert [servo.get(name) for name in ("P_Coefficient", "I_Coefficient")] == [16, 7]
    servo.power_cycle()
    assert [servo.get(name) for name in ("P_Coefficient", "I_Coefficient")] == [16, 0]
    assert servo.get("Torque_Enable") == 0
    assert servo.get("Torque_Limit") == 1000


def test_maximum_torque_reaches_the_limit_only_at_power_on(servo: VirtualServo) -> None:
    put(servo, "Lock", 0)
    put(servo, "Max_Torque_Limit", 500)
    assert servo.get("Torque_Limit") == 1000
    servo.power_cycle()
    assert servo.get("Torque_Limit") == 500


def test_read_only_registers_stay(servo: VirtualServo) -> None:
    for name in ("Model_Number", "Firmware_Major_Version", "Present_Temperature"):
        before = servo.get(name)
        servo.write(REGISTERS[name].address, b"\x01\x02")
        assert servo.get(name) == before
