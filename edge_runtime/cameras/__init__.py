"""Cameras: the kinds there are by name, and what every kind can do."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from edge_runtime.config import CameraConfig

if TYPE_CHECKING:
    from typing_extensions import Self

CAMERAS = {
    "synthetic": "edge_runtime.cameras.synthetic:SyntheticCamera",
    "opencv": "edge_runtime.cameras.opencv:OpenCVCamera",
}


@dataclass(frozen=True)
class CameraFrame:
    """A picture: (height, width, 3) uint8 RGB, when it was grabbed (CLOCK_MONOTONIC), and its `number`.

    `number` counts the frames that differed from the one before, the first of which was grabbed at `since_ns`: a frozen
    camera delivers, and both stand.
    """

    pixels: npt.NDArray[np.uint8]
    time_ns: int
    number: int
    since_ns: int


class Camera(Protocol):
    """A camera whose newest frame is always at hand. Opening and closing twice are harmless."""

    frames: int  # delivered since it was opened
    failures: int  # times it stopped delivering

    def open(self) -> None:
        """Returns with the first frame there. Raises CameraError, or AccessError for want of permission."""

    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...

    def latest(self) -> CameraFrame | None:
        """The newest frame, without waiting; how old it may be is the caller's to judge. None before `open`."""

    @property
    def shape(self) -> tuple[int, int]:
        """(height, width) of its frames, once open."""

    @property
    def delivered_fps(self) -> float:
        """Frames that changed, per second, over the last two seconds."""


def make_camera(name: str, config: CameraConfig) -> Camera:
    """The camera that `config` describes, not yet opened; `name` is what its errors and log lines call it."""
    module, _, class_name = CAMERAS[config.get_choice_name(type(config))].partition(":")
    camera: Camera = getattr(importlib.import_module(module), class_name)(name, config)
    return camera
