"""The same plan, executed beside the arm without a guard: what the steps were before any limit changed them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from edge_runtime._realtime import ActionRing, ActuatorLoop, PythonPort
from edge_runtime.wire.messages import Chunk
from scripts.benches.asyncbench.link import FPS
from scripts.benches.asyncbench.outcome import Seams


class Witness:
    """A ring and a loop of its own, which drive nobody. `ring` is empty and has taken no chunk yet."""

    def __init__(self, ring: ActionRing) -> None:
        self._ring = ring
        self._loop = ActuatorLoop(ring, PythonPort(self, ring.joints), fps=FPS, history=1)
        self._target: npt.NDArray[np.float64] = np.zeros(ring.joints)
        self._loop.prime(self._target)
        self._merges = 0
        self.seams = Seams()

    def read(self) -> npt.NDArray[np.float64]:
        return self._target

    def write(self, goals: npt.NDArray[np.float64]) -> None:
        self._target = goals

    def merge(self, chunk: Chunk, seen_ns: int) -> None:
        self._ring.merge(chunk.first_timestep, chunk.actions, 0, seen_ns)

    def tick(self, now_ns: int) -> None:
        before = self._target
        self._loop.tick(now_ns)
        record = self._loop.record
        if record.level and self._merges:
            self._step(float(np.abs(self._target - before).max()), seam=record.merges != self._merges)
        if record.level:
            self._merges = record.merges

    def _step(self, size: float, seam: bool) -> None:
        seams = replace(self.seams, step_max=max(self.seams.step_max, size))
        if seam:
            seams = replace(
                seams, seams=seams.seams + 1, seam_sum=seams.seam_sum + size, seam_max=max(seams.seam_max, size)
            )
        self.seams = seams
