"""What a client did, turn by turn of its loop, and what it cost: written by both drivers, read by the bench."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from scripts.rig.usage import cpu_s, memory_mb

_ARRAYS = ("woke_ns", "sent_ns", "timestep", "level", "goal")


@dataclass(frozen=True)
class Usage:
    """Of a process and its children: CPU seconds so far, resident megabytes now."""

    cpu_s: float
    rss_mb: float

    @classmethod
    def now(cls) -> Usage:
        ids = [os.getpid()]
        for number in ids:
            for task in Path(f"/proc/{number}/task").iterdir():
                with contextlib.suppress(OSError):  # a thread that has just ended
                    ids += [int(child) for child in (task / "children").read_text().split()]
        return cls(sum(map(cpu_s, ids)), sum(map(memory_mb, ids)))


@dataclass(frozen=True)
class Turn:
    """One turn of the loop. Without an action `sent_ns` is `woke_ns`, and the goal is that of before."""

    woke_ns: int  # CLOCK_MONOTONIC: the turn began
    sent_ns: int  # the goal had been given to the robot
    timestep: int  # of the action; -1 when there was none
    level: int  # actions in the queue before
    goal: Sequence[float]


@dataclass(frozen=True)
class Diary:
    """Arrays over turns, as `Turn` names them, and `facts` that each driver counts for itself."""

    woke_ns: npt.NDArray[np.int64]
    sent_ns: npt.NDArray[np.int64]
    timestep: npt.NDArray[np.int64]
    level: npt.NDArray[np.int64]
    goal: npt.NDArray[np.float64]  # (turns, joints)
    facts: dict[str, Any]

    @property
    def executed(self) -> npt.NDArray[np.bool_]:
        return self.timestep >= 0

    def between(self, since_ns: float, until_ns: float = np.inf) -> Diary:
        """The turns in that time."""
        kept = (self.woke_ns >= since_ns) & (self.woke_ns < until_ns)
        return Diary(**{name: getattr(self, name)[kept] for name in _ARRAYS}, facts=self.facts)

    @classmethod
    def load(cls, path: Path) -> Diary:
        with np.load(path) as arrays:
            return cls(**{name: arrays[name] for name in _ARRAYS}, facts=json.loads(str(arrays["facts"])))


def write(path: Path, turns: Sequence[Turn], began: Usage, began_s: float, ended_s: float, **facts: Any) -> None:
    """Write the diary; `began` is the usage at `began_s`, when the first action was executed."""
    now = Usage.now()
    facts |= {"cpu": (now.cpu_s - began.cpu_s) / (ended_s - began_s), "rss_mb": now.rss_mb}
    np.savez(
        path,
        woke_ns=np.array([turn.woke_ns for turn in turns], np.int64),
        sent_ns=np.array([turn.sent_ns for turn in turns], np.int64),
        timestep=np.array([turn.timestep for turn in turns], np.int64),
        level=np.array([turn.level for turn in turns], np.int64),
        goal=np.array([list(turn.goal) for turn in turns], np.float64),
        facts=json.dumps(facts),
    )
