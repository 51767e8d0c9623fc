"""The pictures that both sides see: recorded once, shown in turn by the clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]
VIEWS = ("static", "wrist")
FPS = 30


def save(folder: Path, pictures: dict[str, Any]) -> None:
    """Write `pictures`: view -> (n, height, width, 3) uint8 RGB."""
    for view, pixels in pictures.items():
        np.save(folder / f"{view}.npy", pixels)


class Reel:
    """A view's pictures as they would come from a camera; with `only`, always the same one."""

    def __init__(self, folder: Path, view: str, only: int = -1) -> None:
        pictures = np.load(folder / f"{view}.npy", mmap_mode="r")
        self._pictures = np.array(pictures if only < 0 else pictures[only : only + 1])

    @property
    def shape(self) -> tuple[int, int, int]:
        """(height, width, 3)."""
        return self._pictures.shape[1:]

    def number(self, now_s: float) -> int:
        """How many pictures the camera has taken by the monotonic time `now_s`."""
        return int(now_s * FPS)

    def at(self, now_s: float) -> Pixels:
        """The newest picture, not copied."""
        newest: Pixels = self._pictures[self.number(now_s) % len(self._pictures)]
        return newest
