"""The three steps of cleaning, on their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edge_runtime.errors import ProtocolError
from edge_runtime.wire.messages import Frame, Observation
from policy_server import bundle
from policy_server.serving.cleaning import KeyMap, match_keys, prepare, preprocess
from policy_server.serving.filter import Filter
from scripts.rig.bundles import write_bundle
from scripts.rig.robots import hello_to, look


@pytest.fixture
def keys(seeing: Path) -> KeyMap:
    policy = bundle.load(seeing).policy
    return match_keys(hello_to(policy), policy)


def picture(height: int, width: int) -> np.ndarray[Any, Any]:
    """A smooth picture whose red, green and blue differ."""
    y, x = np.mgrid[:height, :width]
    return np.stack([y * 4, x * 4, 200 - x * 2], axis=-1).astype(np.uint8)


def seen(**changes: Any) -> Observation:
    frames = (Frame.raw("front", picture(24, 32)), Frame.raw("wrist", picture(16, 16)))
    extra = {"observation.environment_state": np.array([1.0, 2.0], np.float32)}
    return replace(look(1, frames=frames, extra_state=extra), **changes)


def test_raw_frames_reach_the_engine_as_they_are(keys: KeyMap) -> None:
    inputs = preprocess(seen(), keys)
    assert inputs.keys() == {*keys.features, "seed"}
    np.testing.assert_array_equal(inputs["observation.images.front"], picture(24, 32))
    np.testing.assert_array_equal(inputs["observation.state"], np.zeros(3))


def test_a_jpeg_comes_out_as_rgb(keys: KeyMap) -> None:
    done, data = cv2.imencode(".jpg", picture(24, 32)[..., ::-1], (cv2.IMWRITE_JPEG_QUALITY, 95))
    assert done
    frames = (Frame("front", 24, 32, "jpeg", data.tobytes()), seen().frames[1])
    decoded = preprocess(seen(frames=frames), keys)["observation.images.front"].astype(int)
    assert np.abs(decoded - picture(24, 32)).mean() < 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"state": np.zeros(2, np.float32)}, r"observation.state: float32 \(2,\), the policy takes float32 \(3,\)"),
        ({"state": np.array([0, np.inf, 0], np.float32)}, "observation.state: has a number that is not finite"),
        ({"extra_state": {}}, "observation has"),
        ({"frames": ()}, "observation has"),
        ({"frames": (Frame.raw("front", picture(8, 8)), Frame.raw("wrist", picture(16, 16)))}, "images.front: uint8"),
        ({"frames": (Frame("front", 24, 32, "raw", b"12"), Frame.raw("wrist", picture(16, 16)))}, "2 bytes are not"),
    ],
)
def test_what_does_not_fit_is_refused(keys: KeyMap, change: dict[str, Any], said: str) -> None:
    with pytest.raises(ProtocolError, match=said):
        preprocess(seen(**change), keys)


def test_a_batch_of_one_is_a_view_and_more_are_stacked(keys: KeyMap) -> None:
    one, other = preprocess(seen(), keys), preprocess(seen(state=np.ones(3, np.float32)), keys)
    single = prepare([one])
    assert all(np.shares_memory(single[name], one[name]) and single[name].shape[0] == 1 for name in one)
    both = prepare([one, other])
    np.testing.assert_array_equal(both["observation.state"], [[0, 0, 0], [1, 1, 1]])
    assert both["observation.images.front"].shape == (2, 24, 32, 3)


def test_the_task_goes_along_where_it_is_read(tmp_path: Path) -> None:
    policy = bundle.load(write_bundle(tmp_path / "reading", uses_task=True)).policy
    keys = match_keys(hello_to(policy), policy)
    members = [preprocess(look(1, task=task, timestep=7), keys) for task in ("sort", "pick the cube")]
    batch = prepare(members)
    assert batch["task"].tolist() == ["sort", "pick the cube"]
    assert batch["seed"].tolist() == [[7], [7]]


def test_the_filter_compares_with_the_last_that_succeeded() -> None:
    filter = Filter(1.0)
    assert filter.verdict(look(1, timestep=4)) is None
    assert filter.verdict(look(2, timestep=4)) is None  # the first has not succeeded
    filter.succeeded(look(2, timestep=4))
    assert filter.verdict(look(3, timestep=4, state=9)) == "already_predicted"
    assert filter.verdict(look(4, timestep=5, state=0.57)) == "similar"  # 0.57 * sqrt(3) = 0.99
    assert filter.verdict(look(5, timestep=5, state=0.58)) is None
    filter.succeeded(look(5, timestep=5, state=0.58))
    assert filter.verdict(look(6, timestep=4, state=9)) is None  # only the last one is remembered
    filter.reset()
    assert filter.verdict(look(7, timestep=5, state=0.58)) is None
