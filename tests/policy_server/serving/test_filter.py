"""What the filter calls similar: joints within a distance and, if asked, pictures that look the same."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from edge_runtime.wire.frames import compress
from edge_runtime.wire.messages import Floats, Frame, Observation, Pixels
from policy_server import bundle
from policy_server.serving.filter import Filter
from scripts.rig.bundles import write_bundle
from scripts.rig.robots import Robot, hello_to, look
from tests.policy_server.conftest import Engines, serving

random = np.random.default_rng(5)


def table(height: int = 96, width: int = 128) -> Pixels:
    """A wooden table in the light of a lamp."""
    shade = np.linspace(60, 140, width)[None, :] + 10 * np.sin(np.arange(height) / 5)[:, None]
    return np.repeat(shade[:, :, None], 3, axis=2).astype(np.uint8)


def with_block(picture: Pixels, x: int, y: int = 40, side: int = 6) -> Pixels:
    picture = picture.copy()
    picture[y : y + side, x : x + side] = (200, 30, 30)
    return picture


def as_sent(picture: Pixels) -> Frame:
    """With the noise of a sensor, as a JPEG."""
    noisy = np.clip(picture.astype(np.int16) + random.integers(-2, 3, picture.shape), 0, 255).astype(np.uint8)
    return compress(Frame.raw("top", noisy), 90)


def seen(timestep: int, *frames: Frame, state: float = 0.0) -> Observation:
    joints: Floats = np.full(6, state, np.float32)
    return Observation(timestep, 1, timestep, False, joints, frames=frames)


def after(observation: Observation, image_tolerance: float = 15.0) -> Filter:
    filter = Filter(1.0, image_tolerance)
    filter.succeeded(observation)
    return filter


def test_a_still_scene_is_similar_under_noise_and_compression() -> None:
    picture = with_block(table(), 30)
    filter = after(seen(0, as_sent(picture)))
    assert [filter.verdict(seen(t, as_sent(picture))) for t in range(1, 30)] == ["similar"] * 29


def test_a_block_that_moved_by_its_own_half_is_change() -> None:
    filter = after(seen(0, as_sent(with_block(table(), 30))))
    assert filter.verdict(seen(1, as_sent(with_block(table(), 33)))) is None
    assert Filter(1.0).verdict(seen(1, as_sent(with_block(table(), 33)))) is None  # nothing was run yet
    assert after(seen(0, as_sent(table())), 0.0).verdict(seen(1, as_sent(with_block(table(), 33)))) == "similar"


def test_a_change_on_one_of_two_cameras_is_enough() -> None:
    def both(x: int) -> tuple[Frame, ...]:
        still = as_sent(table())
        return Frame("wrist", still.height, still.width, still.encoding, still.data), as_sent(with_block(table(), x))

    filter = after(seen(0, *both(30)))
    assert filter.verdict(seen(1, *both(30))) == "similar"
    assert filter.verdict(seen(2, *both(60))) is None


def test_what_the_arm_moved_is_change_whatever_the_pictures_say() -> None:
    filter = after(seen(0, as_sent(table())))
    assert filter.verdict(seen(1, as_sent(table()), state=0.5)) is None  # 0.5 degrees on six joints are 1.2
    assert filter.verdict(seen(1, as_sent(table()), state=0.3)) == "similar"


def test_slow_drift_adds_up_since_the_comparison_is_with_what_was_run() -> None:
    filter = after(seen(0, as_sent(table())))
    verdicts = [filter.verdict(seen(t, as_sent(table() + np.uint8(t)))) for t in range(1, 22)]
    assert verdicts[:6] == ["similar"] * 6
    assert verdicts[-1] is None


@pytest.mark.parametrize("shape", [(8, 8), (96, 96), (480, 640)])
def test_pictures_of_any_size_are_compared(shape: tuple[int, int]) -> None:
    picture: npt.NDArray[np.uint8] = cv2.resize(table(), shape[::-1])
    filter = after(seen(0, as_sent(picture)))
    assert filter.verdict(seen(1, as_sent(picture))) == "similar"
    assert filter.verdict(seen(1, as_sent(255 - picture))) is None


def test_a_damaged_picture_is_left_to_the_cleaning() -> None:
    filter = after(seen(0, as_sent(table())))
    assert filter.verdict(seen(1, Frame("top", 96, 128, "jpeg", b"\xff\xd8 no picture \xff\xd9"))) is None


def test_the_same_timestep_and_a_new_session() -> None:
    filter = after(seen(3, as_sent(table())))
    assert filter.verdict(seen(3, as_sent(255 - table()))) == "already_predicted"
    filter.reset()
    assert filter.verdict(seen(4, as_sent(table()))) is None


def test_over_the_wire_a_moved_block_is_run_and_a_damaged_picture_is_a_failure(
    tmp_path: Path, engines: Engines
) -> None:
    path = write_bundle(tmp_path / "seeing", name="seeing", cameras=[("top", 96, 128)])
    policy = bundle.load(path).policy
    hello = hello_to(policy, similarity_tolerance=1.0, image_tolerance=15.0)
    with serving(path) as server, Robot(server.address, hello) as robot:
        robot.welcomed()

        def ask(id: int, frame: Frame) -> str:
            return type(robot.ask(look(id, timestep=id, frames=(frame,)))).__name__

        still, moved = as_sent(with_block(table(), 30)), as_sent(with_block(table(), 60))
        broken = Frame("top", 96, 128, "jpeg", b"\xff\xd8 no picture \xff\xd9")
        answers = [ask(1, still), ask(2, still), ask(3, moved), ask(4, moved), ask(5, broken), ask(6, still)]
    assert answers == ["Chunk", "Skipped", "Chunk", "Skipped", "Failure", "Chunk"]
