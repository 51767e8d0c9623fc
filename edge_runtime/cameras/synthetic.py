"""A camera that is not there: a picture that moves, with the detail and the noise of a real one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import cv2
import numpy as np
import numpy.typing as npt

from edge_runtime.cameras import CameraFrame
from edge_runtime.config import SyntheticCameraConfig

if TYPE_CHECKING:
    from typing_extensions import Self

_PICTURES = 8  # drawn once and shown in turn
_DETAIL_PX = 12  # size of the blotches; smaller ones make larger JPEGs
_NOISE = 3  # levels


class SyntheticCamera:
    """Delivers `config.fps` frames a second without a thread: the clock says which one is the newest.

    As JPEG 90 4:2:0 a frame is a tenth of its raw size, as those of a cluttered desk are.
    """

    def __init__(
        self, name: str, config: SyntheticCameraConfig, *, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self.name = name
        self.failures = 0
        self._shape = config.height, config.width
        self._period_ns = int(1e9 / config.fps)
        self._clock_ns = clock_ns
        self._pictures: list[npt.NDArray[np.uint8]] = []
        self._opened_ns = 0

    def open(self) -> None:
        if not self._pictures:
            self._pictures = _draw(*self._shape)
            self._opened_ns = self._clock_ns()

    def close(self) -> None:
        self._pictures = []

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def latest(self) -> CameraFrame | None:
        if not self._pictures:
            return None
        number = self.frames
        pixels = self._pictures[number % _PICTURES]
        time_ns = self._opened_ns + (number - 1) * self._period_ns
        return CameraFrame(pixels, time_ns, number, time_ns)

    @property
    def frames(self) -> int:
        return (self._clock_ns() - self._opened_ns) // self._period_ns + 1 if self._pictures else 0

    @property
    def shape(self) -> tuple[int, int]:
        return self._shape

    @property
    def delivered_fps(self) -> float:
        return 1e9 / self._period_ns if self._pictures else 0.0


def _draw(height: int, width: int) -> list[npt.NDArray[np.uint8]]:
    """Soft blotches that wander to the right, and fresh noise in each picture."""
    random = np.random.default_rng(0)
    coarse = random.integers(0, 256, (height // _DETAIL_PX + 2, width // _DETAIL_PX + 2, 3), np.uint8)
    scene = np.asarray(cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC), np.int16)
    pictures = []
    for index in range(_PICTURES):
        moved = np.roll(scene, index * width // (_PICTURES * 8), axis=1)
        noisy = moved + random.integers(-_NOISE, _NOISE + 1, scene.shape, np.int16)
        pictures.append(np.clip(noisy, 0, 255).astype(np.uint8))
    return pictures
