"""The room of a trial: the virtual arm's scene, in which a block may be moved under the arm's eyes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from edge_runtime.virtual_arm.renderer import Renderer
from edge_runtime.virtual_arm.scene import FIXED_GOAL, Scene
from edge_runtime.wire.messages import Floats, Pixels

Kind = Literal["still", "nudged"]

_NUDGE_M = 0.03
_NEAR_M = (0.14, 0.21)  # from the gripper's frame, of which the jaw's tip is 9 cm away
_TABLE = np.array([[0.15, -0.10], [0.27, 0.10]])  # where blocks are placed, and the policies were trained: x, y


class World:
    """One episode. It is the loop's robot (`read`, `write`); time passes in `advance`, a control tick each.

    `nudged`: when the gripper first comes near (a distance that `seed` draws), the block is 3 cm further on.
    """

    def __init__(self, scene: Scene, kind: Kind, seed: int, *, fixed_goal: bool) -> None:
        self._scene = scene
        self.episode = scene.reset(seed, FIXED_GOAL if fixed_goal else None)
        self._goals: npt.NDArray[np.float64] = scene.joint_state()
        random = np.random.default_rng([1, seed])
        self._near_m = random.uniform(*_NEAR_M) if kind == "nudged" else 0.0
        self._heading = random.uniform(0, 2 * np.pi)

    def read(self) -> npt.NDArray[np.float64]:
        return self._scene.joint_state()

    def write(self, goals: npt.NDArray[np.float64]) -> None:
        self._goals = goals

    def advance(self) -> None:
        self._scene.step(self._goals)
        gripper = self._scene.data.body("gripper").xpos
        if np.linalg.norm(gripper - self._scene.environment_state()[:3]) < self._near_m:
            self._near_m = 0.0
            self._nudge()

    def _nudge(self) -> None:
        """In the drawn direction, or by a quarter turn away from it where that would leave the table."""
        block = self._scene.data.joint("block").qpos
        for quarter in range(4):
            angle = self._heading + quarter * np.pi / 2
            there = block[:2] + _NUDGE_M * np.array([np.cos(angle), np.sin(angle)])
            if (there >= _TABLE[0]).all() and (there <= _TABLE[1]).all():
                block[:2] = there
                return


@dataclass(frozen=True)
class Frame:
    pixels: Pixels
    time_ns: int


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
