"""The room: an arm, a block and a goal, advanced step by step and the same for the same seed.

No threads and no wall clock in here. Joint units are degrees, the gripper's 0..100 over its actuator's range.
"""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

from edge_runtime.motors.calibration import JOINTS
from edge_runtime.virtual_arm.episode import REST_HEIGHT_M, Episode
from edge_runtime.virtual_arm.model import SUBSTEPS, build_model

FIXED_GOAL = (0.20, 0.08)
STATE_NAMES = ("block_x", "block_y", "block_z", "goal_x", "goal_y")

_GRIPPER = JOINTS.index("gripper")
_START = np.array([0, 0, 0, 0.9, 0, 0.9])  # rad
_START_SPREAD = np.array([0.12, 0.12, 0.12, 0.12, 0.12, 0.3])
_TABLE = np.array([[0.15, -0.10], [0.27, 0.10]])  # where block and goal are drawn: low and high x, y
_APART_M = 0.08


class Scene:
    """An SO-101 before a table; `data` (mujoco.MjData) is what a renderer draws."""

    def __init__(self, model: Any = None) -> None:
        self.model = build_model() if model is None else model
        self.data = mujoco.MjData(self.model)
        self._angles = np.array([self.model.joint(name).qposadr[0] for name in JOINTS])
        self._dofs = np.array([self.model.joint(name).dofadr[0] for name in JOINTS])
        self._drives = np.array([self.model.actuator(name).id for name in JOINTS])
        self.lower, self.upper = self.model.actuator_ctrlrange[self._drives].T  # rad
        self._full_force = self.model.actuator_forcerange[self._drives].copy()
        self._goal_site = self.model.site("goal").id
        block = self.model.joint("block")
        self._block_at, self._block_speed = block.qposadr[0], block.dofadr[0]
        self._substep = 0  # of the present control tick
        self.episode = self.reset(0)

    def reset(self, seed: int, goal: tuple[float, float] | None = None) -> Episode:
        """Place arm, block and, unless `goal` (x, y; metres) is given, the goal, as `seed` has it."""
        random = np.random.default_rng(seed)
        spread = random.uniform(-_START_SPREAD, _START_SPREAD)
        block, goal = _draw_places(random, goal)
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[self._angles] = self.data.ctrl[self._drives] = _START + spread
        self.data.qpos[self._block_at : self._block_at + 3] = (*block, REST_HEIGHT_M)
        self.model.site_pos[self._goal_site, :2] = goal
        mujoco.mj_forward(self.model, self.data)
        self._substep = 0
        self.episode = Episode(seed, goal)
        return self.episode

    def place_again(self, block: tuple[float, float]) -> Episode:
        """Put the block at `block` (x, y; metres), at rest, for another attempt; the arm stays as it is."""
        self.data.qpos[self._block_at : self._block_at + 7] = (*block, REST_HEIGHT_M, 1, 0, 0, 0)
        self.data.qvel[self._block_speed : self._block_speed + 6] = 0
        mujoco.mj_forward(self.model, self.data)
        self.episode = Episode(self.episode.seed, self.episode.goal)
        return self.episode

    def step(self, targets: np.ndarray) -> None:
        """One control tick of 16 substeps towards `targets` (6,), joint units; clipped to the actuators' ranges."""
        self.drive(self.to_radians(targets))
        self.advance(SUBSTEPS)

    def drive(self, angles: np.ndarray) -> None:
        """Make `angles` (6,) rad the actuators' targets, clipped to their ranges."""
        self.data.ctrl[self._drives] = np.clip(angles, self.lower, self.upper)

    def limit_force(self, fractions: np.ndarray) -> None:
        """Let each actuator use no more than `fractions` (6,) 0..1 of its force; 0 is a limp joint."""
        self.model.actuator_forcerange[self._drives] = self._full_force * fractions[:, None]

    def push(self, fractions: np.ndarray) -> None:
        """Push on each joint with `fractions` (6,) of its actuator's full force, until told otherwise."""
        self.data.qfrc_applied[self._dofs] = self._full_force[:, 1] * fractions

    def advance(self, substeps: int) -> None:
        """Let `substeps` of 1/480 s pass; the episode is judged at the end of each control tick."""
        while substeps > 0:
            count = min(substeps, SUBSTEPS - self._substep)
            mujoco.mj_step(self.model, self.data, nstep=count)
            substeps -= count
            self._substep = (self._substep + count) % SUBSTEPS
            if self._substep == 0:
                self._judge()

    def angles(self) -> np.ndarray:
        """Joint angles (6,) in rad."""
        return np.asarray(self.data.qpos[self._angles])

    def velocities(self) -> np.ndarray:
        """Joint velocities (6,) in rad/s."""
        return np.asarray(self.data.qvel[self._dofs])

    def forces(self) -> np.ndarray:
        """What the actuators exert (6,), -1..1 of their full force."""
        return np.asarray(self.data.actuator_force[self._drives] / self._full_force[:, 1])

    def joint_state(self) -> np.ndarray:
        """Joint positions (6,) in joint units."""
        return self.to_units(self.angles())

    def environment_state(self) -> np.ndarray:
        """Block x, y, z and goal x, y (5,) in metres: STATE_NAMES."""
        return np.concatenate([self._block(), self.episode.goal])

    def to_radians(self, units: np.ndarray) -> np.ndarray:
        """Joint units (6,) -> rad."""
        angles = np.array(np.radians(units))
        low, high = self.lower[_GRIPPER], self.upper[_GRIPPER]
        angles[_GRIPPER] = low + units[_GRIPPER] / 100 * (high - low)
        return angles

    def to_units(self, angles: np.ndarray) -> np.ndarray:
        """Rad (6,) -> joint units."""
        units = np.array(np.degrees(angles))
        low, high = self.lower[_GRIPPER], self.upper[_GRIPPER]
        units[_GRIPPER] = (angles[_GRIPPER] - low) / (high - low) * 100
        return units

    def _block(self) -> np.ndarray:
        return np.asarray(self.data.qpos[self._block_at : self._block_at + 3])

    def _judge(self) -> None:
        speed = float(np.linalg.norm(self.data.qvel[self._block_speed : self._block_speed + 3]))
        self.episode.judge(self._block(), speed, float(self.joint_state()[_GRIPPER]))


def _draw_places(
    random: np.random.Generator, goal: tuple[float, float] | None
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Block and goal (x, y), at least 8 cm apart; whatever came second is drawn again while it is too near."""
    drawn = random.uniform(*_TABLE)
    other = random.uniform(*_TABLE) if goal is None else np.array(goal)
    while np.linalg.norm(drawn - other) < _APART_M:
        if goal is None:
            other = random.uniform(*_TABLE)
        else:
            drawn = random.uniform(*_TABLE)
    return (float(drawn[0]), float(drawn[1])), (float(other[0]), float(other[1]))
