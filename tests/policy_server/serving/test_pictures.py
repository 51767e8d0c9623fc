"""Frames over a real connection: by name, raw or JPEG, and none that lies reaches the engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import grpc
import numpy as np
import pytest

from edge_runtime.wire.messages import Chunk, Failure, Frame, Observation, Received
from policy_server import bundle
from scripts.rig.robots import Robot, hello_to, look
from tests.policy_server.conftest import serving


@pytest.fixture
def robot(seeing: Path) -> Iterator[Robot]:
    with serving(seeing) as server, Robot(server.address, hello_to(bundle.load(seeing).policy)) as robot:
        yield robot.welcomed()


def view(id: int, front: int, wrist: int, *, order: int = 1, **changes: Any) -> Observation:
    """What the two cameras see: grey of the given brightness."""
    frames = [
        Frame.raw("front", np.full((24, 32, 3), front, np.uint8)),
        Frame.raw("wrist", np.full((16, 16, 3), wrist, np.uint8)),
    ][::order]
    extra = {"observation.environment_state": np.array([0.0, 1.0], np.float32)}
    return look(id, timestep=id, frames=tuple(frames), extra_state=extra, **changes)


def expected(brightness: float) -> Any:
    """The chunk that `seeing` gives: its bias of 1, the extra state's mean of 0.5, the two frames' means."""
    return np.broadcast_to(1 + 0.5 + brightness + np.arange(4)[:, None] / 8, (4, 3))


def test_frames_go_where_their_names_say(robot: Robot) -> None:
    for id, order in ((1, 1), (2, -1)):
        np.testing.assert_allclose(robot.ask(view(id, 100, 40, order=order)).actions, expected(140), rtol=1e-6)
    np.testing.assert_allclose(robot.ask(view(3, 100, 40), jpeg_quality=90).actions, expected(140), rtol=1e-6)


def test_a_damaged_jpeg_fails_alone(robot: Robot) -> None:
    done, data = cv2.imencode(".jpg", np.zeros((24, 32, 3), np.uint8))
    assert done
    good = view(1, 9, 9)
    damaged = Frame("front", 24, 32, "jpeg", data.tobytes()[:-2])
    failure = robot.ask(look(1, frames=(damaged, good.frames[1]), extra_state=good.extra_state))
    assert isinstance(failure, Failure)
    assert failure.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert "not a whole JPEG" in failure.message
    assert isinstance(robot.ask(view(2, 9, 9)), Chunk)


def test_a_jpeg_that_lies_about_its_size_is_not_decoded(robot: Robot) -> None:
    done, data = cv2.imencode(".jpg", np.zeros((24, 32, 3), np.uint8))
    assert done
    bomb = data.tobytes().replace(b"\x00\x18\x00\x20", b"\x4e\x20\x4e\x20", 1)  # 20000 x 20000
    good = view(1, 9, 9)
    failure = robot.ask(
        look(1, frames=(Frame("front", 24, 32, "jpeg", bomb), good.frames[1]), extra_state=good.extra_state)
    )
    assert "the JPEG is 20000x20000, declared 32x24" in failure.message


def test_only_a_robot_that_says_so_is_told_what_has_arrived(seeing: Path) -> None:
    with serving(seeing) as server:
        policy = bundle.load(seeing).policy
        with (
            Robot(server.address, hello_to(policy)) as old,
            Robot(server.address, hello_to(policy, understands=("received", "later"))) as new,
        ):
            pixels = sum(24 * 32 * 3 if camera.name == "front" else 16 * 16 * 3 for camera in policy.cameras)
            assert isinstance(old.welcomed().ask(view(1, 100, 40)), Chunk)
            assert new.welcomed().ask(view(1, 100, 40)) == Received(1, pixels)
            assert isinstance(new.receive(), Chunk)
