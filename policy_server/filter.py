"""Is this observation worth running?"""

from __future__ import annotations

import numpy as np

from edge_runtime.wire.messages import Floats, Observation, SkipReason


class Filter:
    """Remembers the last observation whose inference succeeded; what adds nothing to it is skipped.

    Similar is an L2 distance over the joints, in their own unit, below `tolerance`; 0 turns that check off. An
    observation that must go is not to be asked about.
    """

    def __init__(self, tolerance: float) -> None:
        self._tolerance = tolerance
        self._timestep: int | None = None
        self._state: Floats | None = None

    def verdict(self, observation: Observation) -> SkipReason | None:
        """Why `observation` need not run; None when it is worth running."""
        if observation.timestep == self._timestep:
            return "already_predicted"
        if self._state is not None and np.linalg.norm(observation.state - self._state) < self._tolerance:
            return "similar"
        return None

    def succeeded(self, observation: Observation) -> None:
        """The inference of `observation` gave a chunk: from now on it is the one to compare with."""
        self._timestep, self._state = observation.timestep, observation.state

    def reset(self) -> None:
        """A new session: timesteps start anew and the arm may be anywhere."""
        self._timestep = self._state = None
