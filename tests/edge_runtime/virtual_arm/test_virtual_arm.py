"""The virtual arm in this process, on a clock that a test turns: servos before the scene, and its settings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge_runtime.errors import ConfigError
from edge_runtime.virtual_arm.arm import STRIDE_S, VirtualArm
from edge_runtime.virtual_arm.calibration import to_ticks
from edge_runtime.virtual_arm.cli import VirtualArmConfig
from edge_runtime.virtual_arm.scene import FIXED_GOAL, Scene

REFERENCE = Path(__file__).parents[2] / "checkpoints" / "scene_reference.npz"


@pytest.fixture(scope="module")
def scene() -> Scene:
    return Scene()


@pytest.fixture
def arm(scene: Scene) -> VirtualArm:
    """An arm whose clock is the number of strides it was advanced by."""
    strides = [0]
    arm = VirtualArm(scene, FIXED_GOAL, clock=lambda: strides[0] * STRIDE_S)
    advance = arm.advance

    def tick() -> None:
        strides[0] += 1
        advance()

    arm.advance = tick
    return arm


def shafts(arm: VirtualArm) -> np.ndarray:
    return np.array([felt.shaft for felt in arm.felt()])


def registers(arm: VirtualArm, name: str) -> list[int]:
    return arm.bus.values(name)


def test_a_new_episode_places_servos_and_goals_and_leaves_torque(arm):
    servos = list(arm.bus.servos.values())
    for servo in servos[:3]:
        servo.write(40, b"\1")
        servo.set("Goal_Position", 2500)
    for _ in range(30):
        arm.advance()
    arm.reset({"seed": 2})
    with np.load(REFERENCE) as reference:
        start = to_ticks(reference["fixed_goal_state"][2].astype(float))
    np.testing.assert_allclose(shafts(arm), start, atol=0.01)
    assert registers(arm, "Goal_Position") == [round(tick) for tick in start]
    assert registers(arm, "Present_Position") == [round(tick) for tick in start]
    np.testing.assert_allclose([servo.setpoint for servo in servos], start, atol=0.01)
    assert registers(arm, "Torque_Enable") == [1, 1, 1, 0, 0, 0]
    assert arm.episode()["ticks"] == 0


def test_a_driven_arm_holds_its_start_and_a_limp_one_falls(arm):
    start = shafts(arm)
    for servo in arm.bus.servos.values():
        servo.write(40, b"\1")
    for _ in range(240):
        arm.advance()
    held = shafts(arm)
    for servo in arm.bus.servos.values():
        servo.write(40, b"\0")
    for _ in range(240):
        arm.advance()
    assert np.abs(held - start).max() < 40  # the weight of the arm against its servos' stiffness
    assert np.abs(shafts(arm) - held).max() > 200
    assert arm.episode()["ticks"] == 60


def go(arm: VirtualArm, seconds: float) -> np.ndarray:
    """Let it be for `seconds`; where it is then."""
    for _ in range(round(seconds / STRIDE_S)):
        arm.advance()
    return shafts(arm)


def energise(arm: VirtualArm, **registers: int) -> None:
    for servo in arm.bus.servos.values():
        for name, value in {"Torque_Enable": 1, **registers}.items():
            servo.set(name, value)


def test_a_placed_arm_stands_until_torque_first_goes_on(arm):
    start = shafts(arm)
    assert np.abs(go(arm, 0.5) - start).max() < 40
    energise(arm, Torque_Enable=1)
    go(arm, 0.1)
    energise(arm, Torque_Enable=0)
    assert go(arm, 1.0)[1] - start[1] > 200


def test_too_little_force_sinks_and_the_way_back_is_no_faster_than_the_servo_may(arm):
    energise(arm)
    start = go(arm, 0.5)
    assert registers(arm, "Present_Load")[1] == pytest.approx(-160, abs=40)  # what the arm weighs, stretched out
    assert registers(arm, "Present_Current")[1] == pytest.approx(66, abs=20)
    energise(arm, Torque_Limit=50)
    sunk = go(arm, 0.5)
    assert 20 < sunk[1] - start[1] < 400
    energise(arm, Torque_Limit=1000, Goal_Velocity=100)
    risen = go(arm, 0.5)
    assert 20 < sunk[1] - risen[1] < 50 + 30  # and what the little force had left in the spring
    energise(arm, Goal_Velocity=0)
    assert go(arm, 1.0)[1] == pytest.approx(start[1], abs=3)


def test_a_push_and_a_hand_move_the_scenes_joints(arm):
    energise(arm)
    start = go(arm, 0.2)
    arm.inject({"fault": "push", "ids": [1], "force": 0.5})
    pushed = go(arm, 0.5)
    assert 40 < pushed[0] - start[0] < 80  # half its force, of 123 counts
    assert registers(arm, "Present_Load")[0] == pytest.approx(-500, abs=20)
    arm.inject({"fault": "push", "ids": [1], "force": 1.5})
    assert go(arm, 0.5)[0] - start[0] > 300
    arm.inject({"fault": "clear"})
    energise(arm, Torque_Enable=0)
    arm.inject({"fault": "hand", "ids": [2], "position": 2000})
    held = go(arm, 1.0)
    assert held[1] == pytest.approx(2000, abs=40)
    assert held[2] - start[2] > 100  # no hand is on the elbow
    assert registers(arm, "Present_Load") == registers(arm, "Present_Current") == [0] * 6
    arm.inject({"fault": "hand", "ids": [2], "on": False})
    assert go(arm, 1.0)[1] > held[1] + 20


@pytest.mark.parametrize("seed", [-1, 1.0, True, None, "1"])
def test_a_seed_is_a_whole_number(arm, seed):
    with pytest.raises(ConfigError, match="seed"):
        arm.reset({"seed": seed})


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"http_port": 70000}, "http_port: 70000"),
        ({"cameras": {"front": "side"}}, "cameras.front: 'side' is not one of static, wrist"),
        ({"cameras": ["a", "b", "c"]}, "3 names for 2 cameras"),
        ({"camera_width": 1}, "camera_width: 1"),
        ({"camera_fps": 0}, "camera_fps: 0"),
        ({"seed": -1}, "seed: -1"),
        ({"return_delay_us": -1}, "return_delay_us: -1"),
    ],
)
def test_a_wrong_setting_is_named(wrong, said):
    with pytest.raises(ConfigError, match=said):
        VirtualArmConfig(**wrong)


def test_cameras_are_named_in_order_or_by_a_mapping():
    assert VirtualArmConfig(cameras=["front", "hand"]).views == {"front": "static", "hand": "wrist"}
    assert VirtualArmConfig(cameras={"top": "static", "side": "static"}).views == {"top": "static", "side": "static"}
    assert VirtualArmConfig(cameras=[]).views == {}
