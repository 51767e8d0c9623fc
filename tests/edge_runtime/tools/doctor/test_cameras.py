"""The cameras: opened and watched together; frozen, slow, missing and wrong ones are told apart."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import cv2
import numpy as np
import pytest

from edge_runtime.cameras import v4l2
from edge_runtime.config import OpenCVCameraConfig
from edge_runtime.tools.doctor import cameras
from tests.edge_runtime.tools.doctor.findings import Findings


def film(path: Path, *, fps: float, moving: bool) -> str:
    """Ten seconds of 64x48, in which each picture differs from the one before, or none does."""
    writer = cv2.VideoWriter(str(path), cv2.CAP_OPENCV_MJPEG, cv2.VideoWriter.fourcc(*"MJPG"), fps, (64, 48))
    for number in range(int(10 * fps)):
        writer.write(np.full((48, 64, 3), number % 8 * 30 if moving else 99, np.uint8))
    writer.release()
    return str(path)


def test_each_camera_is_told_apart(tmp_path: Path) -> None:
    """All at once, since each look lasts two seconds."""
    well = film(tmp_path / "well.avi", fps=30, moving=True)
    configs = {
        "well": OpenCVCameraConfig(index_or_path=well, width=64, height=48, fps=30),
        "any": OpenCVCameraConfig(index_or_path=well),
        "slow": OpenCVCameraConfig(index_or_path=film(tmp_path / "slow.avi", fps=10, moving=True), fps=30),
        "frozen": OpenCVCameraConfig(index_or_path=film(tmp_path / "frozen.avi", fps=30, moving=False)),
        "small": OpenCVCameraConfig(index_or_path=well, width=640, height=480),
        "gone": OpenCVCameraConfig(index_or_path="/dev/video77"),
        "away": OpenCVCameraConfig(index_or_path="http://127.0.0.1:9/stream"),
    }
    with ExitStack() as stack:
        found = Findings(cameras.examine(configs, stack))
        assert sorted(found.result) == ["any", "frozen", "slow", "well"]  # open until the stack ends
        assert all(camera.latest() for camera in found.result.values())
    assert found.states() == {
        "well": "ok",
        "any": "ok",
        "slow": "warning",
        "frozen": "failed",
        "small": "failed",
        "gone": "failed",
        "away": "failed",
    }
    assert found.about("well").said.startswith("64x48, ")
    assert found.about("well").said.endswith("frames per second of 30")
    assert 8 < float(found.about("slow").said.split()[1]) < 12
    assert "more light" in found.about("slow").mend
    assert found.about("frozen").said == "64x48, and no picture has changed for 2 s"
    assert "delivers 64x48, asked for 640x480" in found.about("small").said
    mend = "--robot.cameras.small.width=64 --robot.cameras.small.height=48, as it delivers, or leave both out"
    assert found.about("small").mend == mend
    assert "/dev/video77 is not there" in found.about("gone").said
    assert "ls /dev/v4l/by-id" in found.about("gone").mend
    assert "cannot be reached" in found.about("away").said
    assert {finding.exit_code for finding in found.all if finding.state == "failed"} == {74}


def test_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root, who may run this, may open anything
    config = OpenCVCameraConfig(index_or_path=film(tmp_path / "film.avi", fps=30, moving=True))
    with ExitStack() as stack:
        finding = Findings(cameras.examine({"mine": config}, stack)).about("mine")
    assert (finding.state, finding.exit_code) == ("failed", 77)
    assert finding.mend == "sudo usermod -aG video $USER, then log in again"


def test_what_a_device_offers_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A V4L2 device, which a test cannot have: its answers are those of `v4l2.offers`."""
    offers = [v4l2.Offer("MJPG", 640, 480, (30.0, 60.0)), v4l2.Offer("YUYV", 1280, 720, (10.0,))]
    monkeypatch.setattr(v4l2, "offers", lambda path: offers if path == "/dev/video2" else [])
    config = OpenCVCameraConfig(index_or_path=2, width=640, height=480)
    assert cameras._offered(config) == "; it offers MJPG 640x480 at 30, 60 fps"
    assert cameras._offered(OpenCVCameraConfig(index_or_path="http://x/stream")) == ""
