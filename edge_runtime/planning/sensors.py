"""What an observation is made of: where the joints are, the newest frame of each camera, and named numbers."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Protocol

import cv2
import numpy as np

from edge_runtime._realtime import Record
from edge_runtime.errors import DeviceError
from edge_runtime.planning.task import Task
from edge_runtime.wire.messages import Floats, Frame, Pixels, Policy

MOVED = 2.0  # joint units: a picture of an arm that moved so far differs, of one that stands it need not
_REMEMBERED = 1000  # records


class CameraView(Protocol):
    """The newest frame of a camera, and when it was grabbed."""

    def latest(self) -> CameraFrame | None: ...


class CameraFrame(Protocol):
    @property
    def pixels(self) -> Pixels: ...
    @property
    def time_ns(self) -> int: ...
    @property
    def since_ns(self) -> int:
        """When the first frame with these bytes was grabbed; `time_ns` if it is the first."""


class VectorSource(Protocol):
    def read(self) -> Floats:
        """(dimension,) float32. Raises DeviceError."""


class CannotSee(Exception):
    """Why there is nothing to send now; `reason` names the kind, and is counted."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class Motion:
    """Remembers where the joints were: tells a picture that should have changed from one that need not have."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, Floats]] = deque(maxlen=_REMEMBERED)
        self._frozen: dict[str, int] = {}  # camera -> since when its picture has stood beside an arm that moved

    def note(self, record: Record) -> None:
        self._seen.append((record.time_ns, record.positions))

    def is_frozen(self, camera: str, since_ns: int) -> bool:
        """Has a joint moved by more than MOVED since then? Once it has, that holds until the picture changes."""
        if self._frozen.get(camera) == since_ns:
            return True
        positions = [where for time_ns, where in self._seen if time_ns >= since_ns]
        if not positions or float(np.ptp(positions, axis=0).max()) <= MOVED:
            return False
        self._frozen[camera] = since_ns
        return True


@dataclass(frozen=True)
class Sensors:
    """Cameras and vectors by the policy's names, the task, and how frames are fitted.

    A picture that stands while a joint moves is as old as its first copy, unless its camera is one of
    `may_stand_still`. `motion` is told of each record by `follow`.
    """

    policy: Policy
    cameras: Mapping[str, CameraView]
    vectors: Mapping[str, VectorSource]
    resize: bool
    max_frame_age_s: float
    task: Task
    max_joint_age_s: float = math.inf
    may_stand_still: Set[str] = frozenset()
    motion: Motion = field(default_factory=Motion)

    def follow(self, record: Record) -> None:
        """Remember where the joints are: to be called with every record."""
        self.motion.note(record)

    def state(self, record: Record) -> Floats:
        """The joints' positions of `record`, (joints,). CannotSee if one is too old, or was never heard."""
        oldest = int(np.argmax(record.ages_s))
        age_s = float(record.ages_s[oldest])
        if age_s > self.max_joint_age_s:
            said = "was never heard" if age_s == math.inf else f"is {age_s:.2f} s old"
            raise CannotSee("stale_joint", f"{self.policy.joints[oldest].name}: the position {said}")
        return np.asarray(record.positions, np.float32)

    def frames(self, now_ns: int) -> tuple[Frame, ...]:
        """The newest frame of each camera in the policy's order. CannotSee if one is missing or too old."""
        frames = []
        for camera in self.policy.cameras:
            newest = self.cameras[camera.name].latest()
            age_s = math.inf if newest is None else (now_ns - newest.time_ns) / 1e9
            if newest is None or age_s > self.max_frame_age_s:
                raise CannotSee("stale_frame", f"camera {camera.name}: the newest frame is {age_s:.1f} s old")
            stands_s = (now_ns - newest.since_ns) / 1e9
            moves = camera.name not in self.may_stand_still
            if stands_s > self.max_frame_age_s and moves and self.motion.is_frozen(camera.name, newest.since_ns):
                said = f"the same picture for {stands_s:.1f} s while the arm moved"
                raise CannotSee("frozen_frame", f"camera {camera.name} is frozen: {said}")
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
