"""One virtual STS3215: how it moves and what it weighs, what it remembers, and what cannot be written."""

import pytest

from edge_runtime.motors.feetech import REGISTERS, encode
from edge_runtime.virtual_arm.motion import Weight
from edge_runtime.virtual_arm.servos import Felt, VirtualServo

LIFT = Weight(0.16, rest=2958)


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


@pytest.fixture
def lift() -> VirtualServo:
    """The servo of a joint that weighs, under torque at 2048."""
    servo = VirtualServo(2, now=0.0, weight=LIFT)
    put(servo, "Torque_Enable", 1)
    put(servo, "Goal_Position", 2048)
    return servo


def test_full_force_carries_the_weight_and_rises_as_fast_as_is_left_of_it(lift: VirtualServo) -> None:
    assert run(lift, 5.0) == 2048
    put(lift, "Goal_Position", 1000)
    assert run(lift, 5.1) == pytest.approx(2048 - 340 * 0.84)
    assert run(lift, 6.0) == 1000
    put(lift, "Goal_Position", 2000)
    assert run(lift, 6.1) == pytest.approx(1340)  # down no faster than the servo goes
    assert lift.take_extremes() == (-3400 * 0.84, 3400)


@pytest.mark.parametrize("acceleration", [0, 50])
def test_below_what_gravity_asks_it_sinks_at_a_rate_and_comes_back_once_the_force_does(
    lift: VirtualServo, acceleration: int
) -> None:
    put(lift, "Acceleration", acceleration)
    put(lift, "Torque_Limit", 161)
    assert run(lift, 1.0) == 2048
    put(lift, "Torque_Limit", 100)
    assert run(lift, 1.5) == pytest.approx(2048 + 0.5 * 3400 * 0.06, abs=5)
    put(lift, "Torque_Limit", 0)
    assert run(lift, 2.0) == pytest.approx(2048 + 0.5 * 3400 * 0.22, abs=10)
    assert run(lift, 9.0) == LIFT.rest  # something carries it there
    put(lift, "Torque_Limit", 1000)
    assert run(lift, 9.1) < LIFT.rest
    assert run(lift, 19.0) == 2048


def test_speed_and_acceleration_bound_the_way_back_too(lift: VirtualServo) -> None:
    put(lift, "Torque_Limit", 100)
    sunk = run(lift, 1.0)
    put(lift, "Goal_Velocity", 300)
    put(lift, "Torque_Limit", 1000)
    assert run(lift, 1.2) == pytest.approx(sunk - 60)
    put(lift, "Acceleration", 10)
    put(lift, "Goal_Position", 1000)
    lift.take_extremes()
    run(lift, 8.0)
    assert lift.take_extremes()[0] == pytest.approx(-300)


@pytest.mark.parametrize("ending", ["Torque_Enable", "flags", "power"])
def test_without_torque_it_falls(lift: VirtualServo, ending: str) -> None:
    run(lift, 1.0)
    if ending == "Torque_Enable":
        put(lift, "Torque_Enable", 0)
    elif ending == "flags":
        lift.flags = 32
    else:
        lift.power_cycle()
    assert run(lift, 1.5) == pytest.approx(2048 + 0.5 * 3400 * 0.16)
    assert run(lift, 9.0) == LIFT.rest
    assert lift.get("Present_Load") == lift.get("Present_Current") == 0


def test_it_stands_where_it_was_put_until_torque_first_goes_on() -> None:
    servo = VirtualServo(2, now=0.0, weight=LIFT)
    assert run(servo, 5.0) == 2048
    put(servo, "Torque_Limit", 0)
    put(servo, "Torque_Enable", 1)
    assert run(servo, 5.5) > 2048


@pytest.mark.parametrize(
    ("force", "load", "moves"),
    [(0.0, -160, 0), (0.5, -660, 0), (-0.5, 340, 0), (0.9, -1000, 3400 * 0.06), (-1.2, 1000, -3400 * 0.04)],
)
def test_a_push_is_stood_up_to_with_all_its_force_and_no_more(
    lift: VirtualServo, force: float, load: int, moves: float
) -> None:
    lift.push = force
    assert run(lift, 0.5) == pytest.approx(2048 + 0.5 * moves)
    assert lift.get("Present_Load") == load
    lift.push = 0.0
    assert run(lift, 5.0) == 2048


def test_a_push_moves_what_lies_only_if_it_lifts_it() -> None:
    servo = VirtualServo(2, now=0.0, shaft=LIFT.rest, weight=LIFT)
    servo.held = None
    servo.push = -0.15
    assert run(servo, 1.0) == LIFT.rest
    servo.push = -0.17
    assert run(servo, 2.0) == pytest.approx(LIFT.rest - 34)
    servo.push = 0.0
    assert run(servo, 3.0) == LIFT.rest
    servo.push = 0.01
    assert run(servo, 4.0) == pytest.approx(LIFT.rest + 34)


def test_load_is_the_duty_and_current_the_force(lift: VirtualServo) -> None:
    assert (lift.get("Present_Load"), lift.get("Present_Current")) == (-160, 66)
    put(lift, "Goal_Velocity", 340)
    put(lift, "Goal_Position", 1000)
    lift.advance(0.1)
    assert (lift.get("Present_Load"), lift.get("Present_Current")) == (-260, 66)
    assert lift.get("Present_Velocity") == -340
    put(lift, "Torque_Limit", 200)
    lift.advance(0.2)
    assert (lift.get("Present_Load"), lift.get("Present_Velocity")) == (-200, -136)


def test_how_often_time_is_told_changes_nothing() -> None:
    """Straight pieces are exact, however long they last."""
    often, seldom = (VirtualServo(2, now=0.0, weight=LIFT) for _ in range(2))
    for servo in (often, seldom):
        put(servo, "Torque_Enable", 1)
        put(servo, "Goal_Position", 2500)
    for step in range(1000):
        often.advance(step * 0.0007)
        if step == 500:
            for servo in (often, seldom):
                servo.advance(step * 0.0007)
                put(servo, "Torque_Limit", 50)
    seldom.advance(999 * 0.0007)
    assert often.shaft == pytest.approx(seldom.shaft, abs=1e-6)
    assert often.shaft > 2500


def test_before_a_plant_the_profile_leads_the_shaft_by_what_uses_all_the_force(servo: VirtualServo) -> None:
    put(servo, "Goal_Position", 4000)
    blocked = Felt(2048.0, 0.0, 1.0)
    servo.advance(2.0, blocked)
    assert servo.setpoint == 2048 + 246
    put(servo, "Torque_Limit", 100)
    servo.advance(2.1, blocked)
    assert servo.setpoint == pytest.approx(2048 + 24.6)
    servo.advance(2.2, Felt(2100.0, 700.0, 0.08))
    assert servo.get("Present_Position") == 2100
    assert servo.get("Present_Velocity") == 700
    assert servo.get("Present_Load") == 100  # no more than its limit
    assert servo.get("Present_Current") == 33


def test_flags_release_torque_as_the_unload_condition_says(servo: VirtualServo) -> None:
    servo.flags = 1  # voltage
    assert servo.torque == 1.0
    servo.flags = 32  # overload
    assert servo.torque == 0.0


def test_reported_position_is_shaft_less_offset(servo: VirtualServo) -> None:
    put(servo, "Homing_Offset", -85)
    assert servo.get("Present_Position") == 2048 + 85
    assert servo.position == 2048 + 85
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


def test_a_new_servo_remembers_nothing(servo: VirtualServo) -> None:
    put(servo, "Lock", 0)
    put(servo, "ID", 6)
    put(servo, "Homing_Offset", 100)
    servo.reset_memory()
    assert [servo.get(name) for name in ("ID", "Homing_Offset", "Torque_Enable", "Lock")] == [1, 0, 0, 1]
