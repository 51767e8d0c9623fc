"""How a joint moves: as fast as its servo may and can, against its weight and whatever pushes it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

MAX_SPEED = 3400.0  # counts/s without load

_STEP_S = 0.002  # of a motion that accelerates
_LANDED = 0.25  # counts from the goal


@dataclass(frozen=True)
class Weight:
    """What gravity asks of a joint: `pull`, in parts of the servo's stall force, towards greater counts.

    From `rest` (counts) on something carries the arm, and the weight is felt only by what lifts it.
    """

    pull: float = 0.0
    rest: float = math.inf


class Means(NamedTuple):
    """What a servo may use: counts/s, counts/s², and `force`, 0..1 of its stall force. Each may be infinite."""

    speed: float
    acceleration: float
    force: float


class Motion:
    """A shaft at `position` (counts) that moves at `velocity` (counts/s).

    A geared DC motor, whose inertia is small beside its friction: velocity = MAX_SPEED * (duty + weight + push), duty
    within ± the force it may use. So a joint rises more slowly than it comes down, sinks at a rate where the force is
    less than its weight, and falls without.
    """

    def __init__(self, position: float, weight: Weight) -> None:
        self.position = position
        self.velocity = 0.0
        self._slowest, self._fastest = math.inf, -math.inf
        self._weight = weight

    def take_extremes(self) -> tuple[float, float]:
        """The lowest and the highest velocity since this was last asked; zeros when no time has passed."""
        extremes = (self._slowest, self._fastest) if self._slowest <= self._fastest else (0.0, 0.0)
        self._slowest, self._fastest = math.inf, -math.inf
        return extremes

    def stand(self, position: float) -> None:
        """Be there, at rest."""
        self.position, self.velocity = position, 0.0

    def advance(self, seconds: float, goal: float, means: Means, push: float) -> None:
        """Let time pass on the way to `goal` (counts), under `push` (parts of the stall force).

        Without a limit of acceleration the path is made of straight pieces, each of one step, however long it lasts.
        """
        smooth = math.isfinite(means.acceleration)
        while seconds > 0:
            low, high = self._rate(push - means.force), self._rate(push + means.force)
            step = min(seconds, _STEP_S) if smooth else seconds
            remaining = goal - self.position
            self.velocity = velocity = min(max(self._wanted(remaining, means, step), low), high)
            self._slowest, self._fastest = min(self._slowest, velocity), max(self._fastest, velocity)
            can_stand = low <= 0 <= high
            if velocity == 0 and (remaining == 0 or low == high):
                return
            if smooth and can_stand and abs(remaining) <= _LANDED:
                self.stand(goal)
                return
            step = self._move(step, goal)
            if self.position == goal and can_stand:
                self.velocity = 0.0
            seconds -= step

    def duty(self, velocity: float, force: float, push: float) -> float:
        """What the motor is given, -1..1, so that it moves at `velocity` (counts/s)."""
        wanted = velocity / MAX_SPEED - push
        if velocity < 0 or self.position < self._weight.rest:
            wanted -= self._weight.pull
        elif velocity == 0:
            wanted = min(max(0.0, wanted - self._weight.pull), wanted)  # what carries the arm takes the rest
        return min(max(wanted, -force), force)

    def _wanted(self, remaining: float, means: Means, step: float) -> float:
        """The velocity of the trapezoid: as fast as allowed, and no faster than it can brake before the goal."""
        if math.isinf(means.acceleration):
            return math.copysign(means.speed, remaining) if remaining else 0.0
        braking = math.sqrt(2 * means.acceleration * abs(remaining))
        wanted = math.copysign(min(means.speed, braking), remaining)
        change = wanted - self.velocity
        return self.velocity + math.copysign(min(abs(change), means.acceleration * step), change)

    def _move(self, step: float, goal: float) -> float:
        """Move for `step` seconds, or until the goal or what carries the arm is reached; for how long."""
        ends = [(step, self.position + self.velocity * step)]
        for place in (goal, self._weight.rest):
            way = place - self.position
            if way * self.velocity > 0 and (place == goal or self.velocity > 0):
                ends.append((way / self.velocity, place))
        taken, self.position = min(ends)
        return taken

    def _rate(self, effort: float) -> float:
        """The velocity at which `effort` (duty and push) and weight balance."""
        if self.position < self._weight.rest or effort + self._weight.pull < 0:
            return MAX_SPEED * (effort + self._weight.pull)
        return MAX_SPEED * max(effort, 0.0)
