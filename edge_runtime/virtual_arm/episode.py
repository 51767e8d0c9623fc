"""One attempt at the task: has the block been lifted, put on the goal and let go?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edge_runtime.virtual_arm.model import TICK_S

MAX_TICKS = 360
REST_HEIGHT_M = 0.02  # of the block's centre on the table

_LIFT_M = 0.03
_GOAL_M = 0.03
_SETTLED_M = 0.01
_SETTLED_M_S = 0.02
_OPEN_PERCENT = 40.0


@dataclass
class Episode:
    """What has happened since the scene was placed; counts control ticks until the task is done or 360 have passed."""

    seed: int
    goal: tuple[float, float]  # x, y in metres
    ticks: int = 0
    lifted: bool = False
    success_tick: int | None = None

    def judge(self, block: np.ndarray, speed: float, opening: float) -> None:
        """Count a control tick that ended with the block at `block` (x, y, z; metres), `speed` m/s, jaw `opening` %."""
        if self.done:
            return
        self.ticks += 1
        rise = float(block[2]) - REST_HEIGHT_M
        self.lifted |= rise > _LIFT_M
        away = float(np.hypot(block[0] - self.goal[0], block[1] - self.goal[1]))
        settled = rise < _SETTLED_M and speed < _SETTLED_M_S
        if self.lifted and away < _GOAL_M and settled and opening > _OPEN_PERCENT:
            self.success_tick = self.ticks

    @property
    def success(self) -> bool:
        return self.success_tick is not None

    @property
    def done(self) -> bool:
        return self.success or self.ticks >= MAX_TICKS

    def as_dict(self) -> dict[str, object]:
        """For JSON; `time_s` is simulated, since the placing."""
        return {
            "seed": self.seed,
            "lifted": self.lifted,
            "success": self.success,
            "success_tick": self.success_tick,
            "ticks": self.ticks,
            "time_s": round(self.ticks * TICK_S, 4),
            "done": self.done,
        }
