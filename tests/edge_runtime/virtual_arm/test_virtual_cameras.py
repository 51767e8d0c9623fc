"""The scene's cameras in this process: what they show, their noise, and when they draw."""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import cv2
import mujoco
import numpy as np
import pytest

from edge_runtime.errors import ConfigError
from edge_runtime.virtual_arm.cameras import Cameras
from edge_runtime.virtual_arm.renderer import headless_gl
from edge_runtime.virtual_arm.scene import FIXED_GOAL, Scene

REFERENCE = Path(__file__).parents[2] / "checkpoints" / "scene_reference.npz"


@pytest.fixture
def still() -> Scene:
    try:
        headless_gl()
    except ConfigError as error:
        pytest.skip(str(error))
    scene = Scene()
    scene.reset(0, FIXED_GOAL)
    return scene


def copies(scene: Scene):
    return lambda data: mujoco.mj_copyData(data, scene.model, scene.data)


def frames_of(stream: Cameras, name: str, count: int) -> list[np.ndarray]:
    with closing(stream.watch(name)) as frames:
        return [cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR_RGB) for jpeg in islice(frames, count)]


def test_a_stream_shows_the_scene_with_a_sensors_noise(still):
    with np.load(REFERENCE) as reference:
        expected = reference["fixed_goal_wrist"][0].astype(int)
    with Cameras(still.model, copies(still), {"front": "wrist"}, fps=200) as stream:
        first, second = frames_of(stream, "front", 2)
    assert (first != second).any()
    for shown in (first, second):
        assert 0.2 < np.abs(shown - expected).mean() < 2.5


def test_the_noise_is_the_seeds(still):
    def watch(seed: int | None) -> list[np.ndarray]:
        with Cameras(still.model, copies(still), {"static": "static"}, fps=200, noise_seed=seed) as stream:
            return frames_of(stream, "static", 1)

    np.testing.assert_array_equal(watch(3), watch(3))
    assert (watch(3)[0] != watch(4)[0]).any()
    np.testing.assert_array_equal(watch(None), watch(None))


def test_nothing_is_drawn_when_nobody_looks(still):
    drawn = []

    def snapshot(data: Any) -> None:
        drawn.append(len(stream.watched))
        copies(still)(data)

    with Cameras(still.model, snapshot, {"static": "static", "wrist": "wrist"}, fps=1000) as stream:
        frames_of(stream, "static", 3)
        frames_of(stream, "wrist", 3)
    assert set(drawn) == {1}


def test_a_watcher_sees_the_scene_as_it_is_after_a_redraw(still):
    drawn = []

    def snapshot(data: Any) -> None:
        drawn.append(placed)
        copies(still)(data)

    placed = "before"
    with Cameras(still.model, snapshot, {"static": "static"}, fps=200) as stream:
        stream.redraw()  # nobody watches: nothing to wait for
        assert not drawn
        with closing(stream.watch("static")) as frames:
            next(frames)
            placed = "after"
            stream.redraw()
            assert drawn[-1] == "after"
