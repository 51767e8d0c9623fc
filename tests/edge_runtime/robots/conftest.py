from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_runtime.config import SO101FollowerConfig
from edge_runtime.motors.bus import Bus
from edge_runtime.robots.so_follower import SOFollower
from edge_runtime.robots.so_servos import IDS
from edge_runtime.virtual_arm.bus import VirtualBus
from edge_runtime.virtual_arm.calibration import write_calibration
from edge_runtime.virtual_arm.chain import ServoChain
from tests.edge_runtime.robots.bench import POSE, FailingPort, Hurry, Stage, Time


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


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """An arm that was started and stopped once, so that its memory is as it should be."""
    clock = Time()
    arm = ServoChain(clock=clock, wire_time=True)
    arm.place(POSE)
    port = FailingPort(arm, clock)
    write_calibration(tmp_path, "virtual")
    config = SO101FollowerConfig(id="virtual", port="virtual", calibration_dir=tmp_path)
    robot = SOFollower(config, clock, Bus(port, names={number: joint for joint, number in IDS.items()}))
    robot.open()
    robot.prepare()
    robot.stop("limp", Hurry())
    return Stage(arm, port, clock, robot)
