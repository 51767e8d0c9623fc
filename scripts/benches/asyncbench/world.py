"""The room of a trial: the virtual arm's scene, in which the goal may move while the arm is on its way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from edge_runtime.errors import ConfigError
from edge_runtime.virtual_arm.renderer import Renderer
from edge_runtime.virtual_arm.scene import FIXED_GOAL, Scene
from edge_runtime.wire.messages import Floats, Pixels

Kind = Literal["still", "moved"]

_MOVE_M = 0.05  # further than the 3 cm within which the block has to be
_MOVE_AFTER = (5, 85)  # ticks of motion; most episodes take 90
_TABLE = np.array([[0.15, -0.10], [0.27, 0.10]])  # where goals are drawn, and the policy was trained: low and high x, y


class World:
    """One episode. It is the loop's robot (`read`, `write`); time passes in `advance`, a control tick each.

    `moved`: once, after a number of ticks in motion that `seed` draws, the goal is 5 cm away from where it was.
    Raises ConfigError for that with `fixed_goal`, which the policy does not look for elsewhere.
    """

    def __init__(self, scene: Scene, kind: Kind, seed: int, *, fixed_goal: bool) -> None:
        if kind == "moved" and fixed_goal:
            raise ConfigError("worlds: moved is not for policy=images, which knows one goal only")
        self._scene = scene
        self.episode = scene.reset(seed, FIXED_GOAL if fixed_goal else None)
        self._goals: npt.NDArray[np.float64] = scene.joint_state()
        self._motion = 0
        random = np.random.default_rng([1, seed])
        self._move_at = int(random.integers(*_MOVE_AFTER)) if kind == "moved" else None
        self._heading = random.uniform(0, 2 * np.pi)

    def read(self) -> npt.NDArray[np.float64]:
        return self._scene.joint_state()

    def write(self, goals: npt.NDArray[np.float64]) -> None:
        self._motion += not np.array_equal(goals, self._goals)  # counted, for a method must not gain by standing still
        self._goals = goals

    def advance(self) -> None:
        self._scene.step(self._goals)
        if self._motion == self._move_at:
            self._move_at = None
            self._move_goal()

    def _move_goal(self) -> None:
        """In the drawn direction, or by quarter turns away from it while that would leave the table."""
        goal = np.array(self.episode.goal)
        for quarter in range(4):
            angle = self._heading + quarter * np.pi / 2
            there = goal + _MOVE_M * np.array([np.cos(angle), np.sin(angle)])
            if (there >= _TABLE[0]).all() and (there <= _TABLE[1]).all():
                self.episode.goal = (float(there[0]), float(there[1]))
                self._scene.model.site("goal").pos[:2] = there
                return


@dataclass(frozen=True)
class Frame:
    pixels: Pixels
    time_ns: int

    @property
    def since_ns(self) -> int:
        return self.time_ns


class View:
    """A camera of the scene that is always up to date; drawn only when somebody looks."""

    def __init__(self, renderer: Renderer, scene: Scene, name: str, now_ns: Callable[[], int]) -> None:
        self._renderer, self._scene, self._name, self._now_ns = renderer, scene, name, now_ns

    def latest(self) -> Frame:
        return Frame(self._renderer.render(self._scene.data, self._name), self._now_ns())


class Places:
    """Where block and goal are: the vector that the policy without cameras takes."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def read(self) -> Floats:
        return self._scene.environment_state().astype(np.float32)
