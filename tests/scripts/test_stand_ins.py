"""What stands in for hardware that is not there: robot `none`, the synthetic camera, constant extra state."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from edge_runtime._realtime import ActionRing, ActuatorLoop
from edge_runtime.cameras import make_camera
from edge_runtime.cameras.synthetic import SyntheticCamera
from edge_runtime.config import NoRobotConfig, SyntheticCameraConfig
from edge_runtime.errors import ConfigError, DeviceError
from edge_runtime.planning.extra_state import make_vector
from edge_runtime.robots import make_robot
from edge_runtime.wire.messages import Joint

PERIOD_NS = int(1e9 / 30)


def test_joints_of_no_robot_go_where_they_are_sent() -> None:
    with make_robot(NoRobotConfig(joints={"a.pos": "radians", "b.pos": "metres"})) as robot:
        assert robot.joints == (Joint("a.pos", "radians"), Joint("b.pos", "metres"))
        ring = ActionRing(10, 2)
        ring.open_session(1, clear=True, cursor=0)
        loop = ActuatorLoop(ring, robot.port(1 / 30), fps=30, lower=robot.lower, upper=robot.upper)
        loop.prime(robot.prepare())
        ring.merge(0, np.full((3, 2), 1e6, np.float32), 1)
        loop.tick(PERIOD_NS)
        loop.tick(2 * PERIOD_NS)
        np.testing.assert_array_equal(robot.read(), [1e6, 1e6])
        with pytest.raises(DeviceError):
            robot.fileno()


def test_no_robot_needs_to_be_told_its_joints() -> None:
    with pytest.raises(ConfigError, match=r"robot\.joints"):
        make_robot(NoRobotConfig())


def test_a_synthetic_camera_follows_its_clock() -> None:
    now_ns = 5_000_000_000
    camera = SyntheticCamera("top", SyntheticCameraConfig(width=64, height=48), clock_ns=lambda: now_ns)
    assert camera.latest() is None
    with camera:
        first = camera.latest()
        assert first is not None
        assert first.pixels.shape == (*camera.shape, 3) == (48, 64, 3)
        assert camera.latest().number == first.number
        now_ns += 10 * PERIOD_NS + 1
        later = camera.latest()
        assert later.number == first.number + 10
        assert 0 <= now_ns - later.time_ns <= PERIOD_NS
        assert (later.pixels != first.pixels).any()


def test_a_synthetic_frame_is_as_large_as_a_real_one() -> None:
    with make_camera("top", SyntheticCameraConfig()) as camera:
        frame = camera.latest()
        assert frame is not None
        _, jpeg = cv2.imencode(".jpg", cv2.cvtColor(frame.pixels, cv2.COLOR_RGB2BGR), (cv2.IMWRITE_JPEG_QUALITY, 90))
        assert 8 < frame.pixels.nbytes / jpeg.nbytes < 16
        assert cv2.cvtColor(frame.pixels, cv2.COLOR_RGB2GRAY).std() > 20


def test_constant_numbers() -> None:
    np.testing.assert_array_equal(make_vector("x", "constant:0.5,-1").read(), np.array([0.5, -1], np.float32))
    for wrong in ("constant:", "constant:a", "constant:1,nan"):
        with pytest.raises(ConfigError, match=r"extra_state\.x"):
            make_vector("x", wrong)
