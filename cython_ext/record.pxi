# -- what the loop tells ---------------------------------------------------------------------------------------------

from dataclasses import dataclass

import numpy as np

from libc.stdint cimport int64_t


@dataclass(frozen=True, eq=False)
class Record:
    """What the loop saw and did at the first tick of a timestep; arrays are (joints,) in joint units.

    `time_ns` is the tick's time, `timestep` and `level` (rows left) are those before its pick, `ages_s` says how old
    each position is (infinite: never heard), `merges` how many chunks are in the plan it executed from, and `outcome`
    what became of the timestep: picked, starved, hole, paused, failed, or blocked by a following error.
    `sequence` counts records from 1; 0 means that there was none yet.
    """

    sequence: int
    time_ns: int
    timestep: int
    level: int
    positions: np.ndarray
    ages_s: np.ndarray
    goal: np.ndarray
    merges: int
    paused: bool
    outcome: str = "starved"


cdef struct Snapshot:
    int64_t sequence
    int64_t time_ns
    int64_t timestep
    int64_t level
    int64_t merges
    bint paused
    int outcome
    double positions[MAX_JOINTS]
    double ages_s[MAX_JOINTS]
    double goal[MAX_JOINTS]
