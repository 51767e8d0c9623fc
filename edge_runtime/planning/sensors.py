"""What an observation is made of besides the joints: the newest frame of each camera, and named numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import cv2

from edge_runtime.errors import DeviceError
from edge_runtime.planning.task import Task
from edge_runtime.wire.messages import Floats, Frame, Pixels, Policy


class CameraView(Protocol):
    """The newest frame of a camera, and when it was grabbed."""

    def latest(self) -> CameraFrame | None: ...


class CameraFrame(Protocol):
    @property
    def pixels(self) -> Pixels: ...
    @property
    def time_ns(self) -> int: ...


class VectorSource(Protocol):
    def read(self) -> Floats:
        """(dimension,) float32. Raises DeviceError."""


class CannotSee(Exception):
    """Why there is nothing to send now; `reason` names the kind, and is counted."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


@dataclass(frozen=True)
class Sensors:
    """Cameras and vectors by the policy's names, the task, and how frames are fitted."""

    policy: Policy
    cameras: Mapping[str, CameraView]
    vectors: Mapping[str, VectorSource]
    resize: bool
    max_frame_age_s: float
    task: Task

    def frames(self, now_ns: int) -> tuple[Frame, ...]:
        """The newest frame of each camera in the policy's order. CannotSee if one is missing or too old."""
        frames = []
        for camera in self.policy.cameras:
            newest = self.cameras[camera.name].latest()
            age_s = math.inf if newest is None else (now_ns - newest.time_ns) / 1e9
            if newest is None or age_s > self.max_frame_age_s:
                raise CannotSee("stale_frame", f"camera {camera.name}: the newest frame is {age_s:.1f} s old")
            pixels = newest.pixels
            if self.resize and pixels.shape[:2] != (camera.height, camera.width):
                pixels = cv2.resize(pixels, (camera.width, camera.height), interpolation=cv2.INTER_LINEAR)  # type: ignore[assignment]
            frames.append(Frame.raw(camera.name, pixels))
        return tuple(frames)

    def extra_state(self) -> dict[str, Floats]:
        """Each vector, which may wait for a slow URL. CannotSee if one cannot be read."""
        try:
            return {name: vector.read() for name, vector in self.vectors.items()}
        except DeviceError as error:
            raise CannotSee("extra_state", str(error)) from error
