"""Do the cameras open, and does what they deliver come as it was asked for?"""

from __future__ import annotations

import re
import threading
from collections.abc import Generator, Mapping
from contextlib import ExitStack

from edge_runtime.cameras import Camera, make_camera, v4l2
from edge_runtime.config import CameraConfig
from edge_runtime.errors import AccessError, CameraError, EdgeRuntimeError
from edge_runtime.tools.doctor.finding import Finding, Group

CAMERAS = Group("cameras")
WATCHED_S = 2.0  # the window of delivered_fps
_OF_ANOTHER_SIZE = re.compile(r"delivers (\d+)x(\d+), asked for")
SLOW = 0.9  # of the rate asked for, as the camera itself warns


def examine(configs: Mapping[str, CameraConfig], stack: ExitStack) -> Generator[Finding, None, dict[str, Camera]]:
    """Open all, as `start` does, and watch them together; returns those that opened, which `stack` closes."""
    opened = {}
    for name, config in configs.items():
        try:
            opened[name] = stack.enter_context(make_camera(name, config))
        except EdgeRuntimeError as error:
            yield CAMERAS.failed(name, error, _how_to_open(name, config, error))
    if opened:
        threading.Event().wait(WATCHED_S)
    for name, camera in opened.items():
        yield _watched(name, camera, configs[name])
    return opened


def _watched(name: str, camera: Camera, config: CameraConfig) -> Finding:
    height, width = camera.shape
    fps = camera.delivered_fps
    said = f"{width}x{height}, {fps:.1f} frames per second" + (f" of {config.fps}" if config.fps else "")
    if not fps:
        frozen = CameraError(f"{width}x{height}, and no picture has changed for {WATCHED_S:g} s")
        return CAMERAS.failed(name, frozen, "unplug the camera and plug it in again")
    if config.fps and fps < SLOW * config.fps:
        mend = "more light (exposure takes time), fourcc: MJPG, a USB port of its own"
        return CAMERAS.warning(name, said + _offered(config), mend)
    return CAMERAS.ok(name, said + _offered(config))


def _offered(config: CameraConfig) -> str:
    """What a V4L2 device has for the size that is asked for."""
    source = str(getattr(config, "index_or_path", ""))
    path = f"/dev/video{source}" if source.isdigit() else source
    found = v4l2.nearest(v4l2.offers(path), config.width, config.height, most=2) if path.startswith("/dev/") else ""
    return f"; it offers {found}" if found else ""


def _how_to_open(name: str, config: CameraConfig, error: EdgeRuntimeError) -> str:
    source = getattr(config, "index_or_path", "")
    if isinstance(error, AccessError):
        return "sudo usermod -aG video $USER, then log in again"
    if size := _OF_ANOTHER_SIZE.search(str(error)):
        flag = f"--robot.cameras.{name}"
        return f"{flag}.width={size[1]} {flag}.height={size[2]}, as it delivers, or leave both out"
    if "://" in str(source):
        return f"look at it from here: ffprobe {source}"
    if "asked for" in str(error):
        return "width, height, fps and fourcc as it offers them: v4l2-ctl --list-formats-ext"
    return "see which are there: ls /dev/v4l/by-id; a camera has one program at a time"
