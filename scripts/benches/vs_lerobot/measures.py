"""What a diary says: rate, lateness, starved turns, repeated steps, and whose actions an arm executed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scripts.benches.vs_lerobot.diary import Diary
from scripts.benches.vs_lerobot.frames import FPS

PERIOD_NS = 1e9 / FPS
SETTLE_NS = 1e9  # after the first action: what a start costs is not what is compared

Chunk = npt.NDArray[np.floating]  # (rows, joints)


@dataclass(frozen=True)
class Pace:
    """Of the turns in a window; milliseconds.

    `late`: turns are due on an absolute grid, a period apart, the earliest grid that no turn of the window is ahead of;
    by how much a turn in which a step was executed began after its time. `sent`: likewise, for the moment when its goal
    had been given to the robot. `jitter`: how far the time between two turns is from a period.
    """

    rate_hz: float
    late_p50: float
    late_p99: float
    sent_p99: float
    jitter_p99: float
    starved: float  # part of the turns without an action, in percent

    @classmethod
    def of(cls, window: Diary) -> Pace:
        woke, executed = window.woke_ns, window.executed
        late, sent = _late_ms(woke)[executed], _late_ms(window.sent_ns)[executed]
        return cls(
            rate_hz=(len(woke) - 1) / (woke[-1] - woke[0]) * 1e9,
            late_p50=float(np.percentile(late, 50)),
            late_p99=float(np.percentile(late, 99)),
            sent_p99=float(np.percentile(sent, 99)),
            jitter_p99=float(np.percentile(np.abs(np.diff(woke) - PERIOD_NS), 99) / 1e6),
            starved=100 * float(1 - executed.mean()),
        )


def _late_ms(times_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    behind = times_ns - np.arange(len(times_ns)) * PERIOD_NS
    late: npt.NDArray[np.float64] = (behind - behind.min()) / 1e6
    return late


def window(diary: Diary, seconds: float) -> Diary:
    """The turns of `seconds` from a while after the first action on."""
    since = first_action_ns(diary) + SETTLE_NS
    return diary.between(since, since + 1e9 * seconds)


def first_action_ns(diary: Diary) -> float:
    return float(diary.woke_ns[diary.executed][0])


def repeated(diary: Diary) -> int:
    """Steps that were executed although that timestep, or a later one, had been executed before."""
    steps = diary.timestep[diary.executed]
    return int((steps[1:] <= np.maximum.accumulate(steps)[:-1]).sum())


def recovery_s(diary: Diary, serving_ns: float) -> float:
    """From a server that serves again to the first action after that; infinite when there was none."""
    after = diary.woke_ns[diary.executed & (diary.woke_ns > serving_ns)]
    return float(after[0] - serving_ns) / 1e9 if len(after) else float("inf")


def foreign(found: Diary, own: Chunk, other: Chunk) -> float:
    """Percent of the steps whose goal is nearer to a row of `other` than to any of `own`; chunks are (rows, joints)."""
    goals = found.goal[found.executed]
    return 100 * float((_distance(goals, other) < _distance(goals, own)).mean())


def _distance(goals: npt.NDArray[np.float64], chunk: Chunk) -> npt.NDArray[np.float64]:
    """Of each goal to the nearest row: the largest difference of a joint."""
    distances: npt.NDArray[np.float64] = np.abs(goals[:, None, :] - chunk[None, :, :]).max(axis=2).min(axis=1)
    return distances
