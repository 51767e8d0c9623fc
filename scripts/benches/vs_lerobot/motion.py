"""Where the arm's joints are: the same function of the clock for both sides, whatever they command."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Motion = Literal["moving", "still"]
Vector = npt.NDArray[np.float64]

JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
CENTRE: Vector = np.array([0.0, -20.0, 30.0, 40.0, 0.0, 30.0])  # degrees, the gripper 0..100
SWING = 15.0
SWINGS_PER_S = 0.25  # up to 24 units/s a joint: no two observations are similar


def positions(motion: Motion, now_s: float, offset: float = 0.0) -> Vector:
    """Joint positions (6,) at the monotonic time `now_s`, all joints `offset` units away from the usual place."""
    if motion == "still":
        return CENTRE + offset
    phases: Any = 2 * np.pi * SWINGS_PER_S * now_s + np.arange(len(JOINTS))
    return np.asarray(CENTRE + offset + SWING * np.sin(phases))
