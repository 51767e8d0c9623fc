"""Is this observation worth running?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property

import cv2
import numpy as np

from edge_runtime.errors import ProtocolError
from edge_runtime.wire.frames import pixels
from edge_runtime.wire.messages import Frame, Observation, Pixels, SkipReason

THUMBNAIL = 24  # cells along each side of a picture: few enough that noise averages out, enough to see a block move


class Filter:
    """Remembers the last observation whose inference succeeded; what adds nothing to it is skipped.

    Similar is an L2 distance over the joints, in their own unit, below `tolerance` (0: nothing is), and, unless
    `image_tolerance` is 0, no camera whose picture differs by as many levels (0..255) in any cell. An observation that
    must go is not to be asked about.
    """

    def __init__(self, tolerance: float, image_tolerance: float = 0.0) -> None:
        self._tolerance = tolerance
        self._image_tolerance = image_tolerance
        self._last: _Seen | None = None

    def verdict(self, observation: Observation) -> SkipReason | None:
        """Why `observation` need not run; None when it is worth running. May decode its frames."""
        last = self._last
        if last is None:
            return None
        if observation.timestep == last.observation.timestep:
            return "already_predicted"
        if not self._tolerance or math.dist(observation.state, last.observation.state) >= self._tolerance:
            return None
        if self._image_tolerance and last.difference(_Seen(observation)) >= self._image_tolerance:
            return None
        return "similar"

    def succeeded(self, observation: Observation) -> None:
        """The inference of `observation` gave a chunk: from now on it is the one to compare with."""
        self._last = _Seen(observation)

    def reset(self) -> None:
        """A new session: timesteps start anew and the arm may be anywhere."""
        self._last = None


class _Seen:
    """An observation and, once somebody asks, its pictures in small."""

    def __init__(self, observation: Observation) -> None:
        self.observation = observation

    def difference(self, other: _Seen) -> float:
        """The most by which any cell of any camera differs, in levels; infinite for a picture that is damaged."""
        try:
            mine, theirs = self._thumbnails, other._thumbnails
        except ProtocolError:
            return float("inf")  # worth running: the cleaning says what is wrong with it
        return max((float(cv2.absdiff(mine[name], theirs[name]).max()) for name in mine), default=0.0)

    @cached_property
    def _thumbnails(self) -> Mapping[str, Pixels]:
        return {frame.camera: thumbnail(frame) for frame in self.observation.frames}


def thumbnail(frame: Frame) -> Pixels:
    """The mean colour of each cell of a picture, at most THUMBNAIL a side. Raises ProtocolError.

    Not in grey: a red block on a table as bright as itself would be gone.
    """
    size = min(THUMBNAIL, frame.width), min(THUMBNAIL, frame.height)
    return np.asarray(cv2.resize(pixels(frame), size, interpolation=cv2.INTER_AREA), np.uint8)
