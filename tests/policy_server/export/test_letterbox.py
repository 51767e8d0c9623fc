"""Frames into a square, as LeRobot's `resize_with_pad` puts them there; in torch and in the exported graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F

from policy_server.export.graph import GraphOptions, export_graph
from policy_server.export.letterbox import Letterbox, Resize
from policy_server.export.normalisation import Affine
from policy_server.export.scaling import PixelScaling

pytestmark = pytest.mark.export

SIDE = 512
SIZES = {
    "landscape": (480, 640),
    "portrait": (640, 480),
    "odd": (333, 517),
    "narrow": (97, 1000),
    "larger": (1080, 1920),
    "smaller": (96, 128),
    "exact": (512, 512),
}


def resize_with_pad(img: torch.Tensor, width: int, height: int) -> torch.Tensor:
    """LeRobot 0.4.4, `modeling_smolvla.py`, in its own words."""
    cur_height, cur_width = img.shape[2:]
    ratio = max(cur_width / width, cur_height / height)
    resized_height, resized_width = int(cur_height / ratio), int(cur_width / ratio)
    resized = F.interpolate(img, size=(resized_height, resized_width), mode="bilinear", align_corners=False)
    pad_height, pad_width = max(0, int(height - resized_height)), max(0, int(width - resized_width))
    return F.pad(resized, (pad_width, 0, pad_height, 0), value=0)


def frame(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(height).integers(0, 256, (1, height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_equals_lerobots(size: tuple[int, int]) -> None:
    image = torch.from_numpy(frame(*size)).permute(0, 3, 1, 2).float() / 255
    found = Letterbox(*size, SIDE, SIDE)(image)
    assert found.shape == (1, 3, SIDE, SIDE)
    torch.testing.assert_close(found, resize_with_pad(image, SIDE, SIDE), rtol=0, atol=0)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_the_graph_equals_torch(size: tuple[int, int], tmp_path: Path) -> None:
    module = torch.nn.Sequential(PixelScaling(Affine.identity(3)), Letterbox(*size, SIDE, SIDE)).eval()
    frames = frame(*size)
    example = {"frames": torch.from_numpy(np.concatenate([frames, frames]))}
    export_graph(module, example, ["images"], tmp_path / "box.onnx", GraphOptions())
    session = onnxruntime.InferenceSession(tmp_path / "box.onnx", providers=["CPUExecutionProvider"])
    found = session.run(None, {"frames": frames})[0]
    # ONNX divides where torch multiplies: over 1920 columns the place of a pixel differs by 1e-4 of one
    np.testing.assert_allclose(found, module(torch.from_numpy(frames)).numpy(), atol=2e-4)
    if size == (SIDE, SIDE):
        np.testing.assert_array_equal(found, (frames.transpose(0, 3, 1, 2) * np.float32(1 / 255)))


@pytest.mark.parametrize("size", [(480, 640), (640, 480), (333, 517)])
def test_padding_is_on_the_left_and_on_the_top(size: tuple[int, int]) -> None:
    found = Letterbox(*size, SIDE, SIDE)(torch.ones(1, 3, *size))[0, 0] > 0
    box = Letterbox(*size, SIDE, SIDE)
    assert found[box.top :, box.left :].all()
    assert not found[: box.top].any()
    assert not found[:, : box.left].any()
    assert min(box.top, box.left) == 0


@pytest.mark.parametrize("size", [(480, 640), (640, 480), (333, 517), (1080, 1920)])
def test_a_circle_stays_round(size: tuple[int, int]) -> None:
    height, width = size
    rows, columns = np.mgrid[:height, :width]
    radius = 0.4 * min(size)
    disc = ((rows - height / 2) ** 2 + (columns - width / 2) ** 2 < radius**2).astype(np.float32)
    found = Letterbox(*size, SIDE, SIDE)(torch.from_numpy(disc)[None, None].expand(1, 3, -1, -1))[0, 0] > 0.5
    tall, wide = (int(found.any(axis).sum()) for axis in (1, 0))
    assert abs(tall - wide) <= 1
    assert abs(wide - 2 * radius * SIDE / max(size)) <= 1


def test_a_plain_resize_stretches_and_leaves_its_own_size_alone() -> None:
    image = torch.rand(1, 3, 48, 64)
    assert Resize(48, 64)(image) is image
    expected = F.interpolate(image, size=(24, 64), mode="bilinear", align_corners=False)
    torch.testing.assert_close(Resize(24, 64)(image), expected)
