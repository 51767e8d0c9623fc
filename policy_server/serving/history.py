"""The last observations of a session, for a policy that looks at more than the newest."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

import numpy as np

from policy_server.serving.cleaning import Inputs


class History:
    """Holds up to `length` observations, oldest first; at the start the first stands for those before it.

    That is LeRobot's rule too (`populate_queues` in its `policies/utils.py`).
    """

    def __init__(self, length: int) -> None:
        self._kept: deque[Inputs] = deque(maxlen=length)

    def add(self, inputs: Inputs) -> None:
        self._kept.append(inputs)

    def clear(self) -> None:
        self._kept.clear()

    def resize(self, length: int) -> None:
        """Hold `length` from now on; the newest of what is there stay."""
        self._kept = deque(self._kept, maxlen=length)

    def latest(self) -> tuple[Inputs, ...]:
        """As many as the policy looks at, oldest first. At least one was added."""
        missing = (self._kept.maxlen or 1) - len(self._kept)
        return (self._kept[0],) * missing + tuple(self._kept)


def stacked(latest: tuple[Inputs, ...], features: Collection[str]) -> Inputs:
    """One observation's inputs: each of `features` with the axis of the observations in front, unless it is one."""
    newest = latest[-1]
    if len(latest) == 1:
        return newest
    return {
        name: np.stack([inputs[name] for inputs in latest]) if name in features else array
        for name, array in newest.items()
    }
