"""What the servos did, by their own account: goals, torque, limits and positions with their times."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import NamedTuple

from edge_runtime.virtual_arm.servos import VirtualServo


class Moment(NamedTuple):
    """The servos at one time, a value for each, in the counts of their registers.

    `slowest` and `fastest` are the lowest and the highest velocity (counts/s) since the moment before, so that no short
    motion hides between two; zeros where no time has passed since.
    """

    time_s: float
    goals: tuple[int, ...]
    torque: tuple[bool, ...]  # Torque_Enable
    limits: tuple[int, ...]  # Torque_Limit
    positions: tuple[float, ...]  # neither rounded nor begun again after a turn
    slowest: tuple[float, ...]
    fastest: tuple[float, ...]


_STATE = Moment._fields.index("slowest")


class MomentLog(deque[Moment]):
    """The newest `size` moments, oldest first."""

    def __init__(self, size: int) -> None:
        super().__init__(maxlen=size)

    def note(self, time_s: float, servos: Collection[VirtualServo]) -> None:
        """Put down how the servos are, unless that is what was put down last."""
        extremes = [servo.take_extremes() for servo in servos]
        moment = Moment(
            time_s,
            tuple([servo.goal for servo in servos]),
            tuple([servo.energised for servo in servos]),
            tuple([servo.limit for servo in servos]),
            tuple([servo.position for servo in servos]),
            tuple([slowest for slowest, _ in extremes]),
            tuple([fastest for _, fastest in extremes]),
        )
        if not self or moment[:_STATE] != self[-1][:_STATE]:
            self.append(moment)
