"""The plan of actions, the loop that executes it and the ports it speaks through: compiled, without the GIL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypedDict

import numpy as np
import numpy.typing as npt

from edge_runtime.timing import Histogram

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Blend = Callable[[Floats, Floats], npt.ArrayLike]

AGGREGATE: Mapping[str, tuple[float, float]]
STARVED: int
PICKED: int
HOLE: int

def bucket(ns: int) -> int: ...

class TemporalEnsemble:
    def __init__(self, coeff: float) -> None: ...
    @property
    def coeff(self) -> float: ...

class LinearBlend:
    def __init__(self, rows: int) -> None: ...
    @property
    def rows(self) -> int: ...

class ActionRing:
    def __init__(
        self,
        capacity: int,
        joints: int,
        aggregate: tuple[float, float] | LinearBlend | TemporalEnsemble | Blend = (0.3, 0.7),
        *,
        max_age_s: float = ...,
    ) -> None: ...
    def merge(self, first_timestep: int, chunk: Floats, session: int, seen_ns: int = ...) -> int: ...
    def open_session(self, session: int, *, clear: bool, cursor: int | None = None) -> None: ...
    def pick(self, out: Floats) -> int: ...
    def planned(self, first_timestep: int, rows: int) -> Floats: ...
    def hold(self, goal: Doubles) -> None: ...
    @property
    def capacity(self) -> int: ...
    @property
    def joints(self) -> int: ...
    @property
    def session(self) -> int: ...
    @property
    def cursor(self) -> int: ...
    @property
    def level(self) -> int: ...
    @property
    def merges(self) -> int: ...
    @property
    def merged_rows(self) -> int: ...
    @property
    def stale_chunks(self) -> int: ...
    @property
    def foreign_chunks(self) -> int: ...
    @property
    def dropped_rows(self) -> int: ...
    @property
    def holes(self) -> int: ...
    @property
    def jumps(self) -> int: ...
    @property
    def too_old(self) -> int: ...

class PythonRobot(Protocol):
    """What a PythonPort drives: positions of all joints and goals for them, in joint units."""

    def read(self) -> npt.ArrayLike: ...
    def write(self, goals: Doubles, /) -> object: ...

class Port:
    @property
    def joints(self) -> int: ...
    @property
    def impossible(self) -> tuple[int, ...]: ...

class PythonPort(Port):
    def __init__(self, robot: PythonRobot, joints: int) -> None: ...

class FeetechPort(Port):
    def __init__(
        self,
        fd: int | None,
        ids: Sequence[int],
        modes: Sequence[int],
        range_min: Sequence[float],
        range_max: Sequence[float],
        drive_mode: Sequence[int],
        *,
        timeout_ns: int,
        echo: bool = False,
        expects_torque: bool = False,
        stop_temperature: int = 0,
    ) -> None: ...
    def reopen(self, fd: int) -> None: ...
    def to_units(self, joint: int, raw: int) -> float: ...
    def to_raw(self, joint: int, units: float) -> int | None: ...
    @property
    def reads(self) -> int: ...
    @property
    def retries(self) -> int: ...
    @property
    def bad_frames(self) -> int: ...
    @property
    def junk_bytes(self) -> int: ...
    @property
    def echo_errors(self) -> int: ...
    @property
    def held_goals(self) -> int: ...
    @property
    def misses(self) -> tuple[int, ...]: ...
    @property
    def missed_in_a_row(self) -> tuple[int, ...]: ...
    @property
    def silent(self) -> tuple[int, ...]: ...
    @property
    def last_errors(self) -> tuple[int, ...]: ...
    @property
    def all_errors(self) -> tuple[int, ...]: ...
    @property
    def hung_up(self) -> bool: ...
    @property
    def health(self) -> tuple[tuple[int, int, int, int] | None, ...]: ...
    @property
    def checks(self) -> tuple[int, ...]: ...

@dataclass(frozen=True, eq=False)
class Record:
    sequence: int
    time_ns: int
    timestep: int
    level: int
    positions: Floats
    ages_s: Doubles
    goal: Floats
    merges: int
    paused: bool
    outcome: Literal["starved", "picked", "hole", "paused", "failed", "blocked"] = ...

class MissedByStage(TypedDict):
    bus: int
    pick: int
    guard: int
    other: int

class Counters(TypedDict):
    ticks: int
    executed: int
    starved: int
    late: int
    missed: int
    missed_by_stage: MissedByStage
    host_stalls: int
    too_old: int
    holes: int
    jumps: int
    clamped_range: int
    clamped_speed: int
    clamped_relative: int
    clamped_acceleration: int
    following_error: int
    impossible_readings: int
    held_nonfinite: int
    read_errors: int
    write_errors: int

class ActuatorLoop:
    def __init__(
        self,
        ring: ActionRing,
        port: Port,
        *,
        fps: float,
        substeps: int = 1,
        lower: Sequence[float] | Doubles | None = None,
        upper: Sequence[float] | Doubles | None = None,
        max_speed: float = 0.0,
        max_relative_target: Sequence[float] | None = None,
        max_acceleration: Sequence[float] | None = None,
        following_error: Literal["warn", "hold", "stop"] = "warn",
        following_limit: Sequence[float] | None = None,
        following_s: float = 1.0,
        max_missed_replies: int = 15,
        dry_run: bool = False,
        realtime: Literal["enforce", "try", "off"] = "off",
        priority: int = 80,
        history: int = 600,
        names: Sequence[str] | None = None,
        page: memoryview | None = None,
        patience_s: float = 0.3,
    ) -> None: ...
    @property
    def joints(self) -> int: ...
    @property
    def realtime_outcome(self) -> str: ...
    @property
    def record(self) -> Record: ...
    @property
    def behind(self) -> tuple[int, ...]: ...
    @property
    def impossible_readings(self) -> tuple[int, ...]: ...
    def prime(self, goal: Sequence[float] | npt.NDArray[np.floating[Any]]) -> None: ...
    def tick(self, now_ns: int) -> None: ...
    def run(self) -> None: ...
    def check_realtime(self) -> None: ...
    def stop(self) -> None: ...
    def pause(self, timeout_s: float = 1.0) -> None: ...
    def resume(self) -> None: ...
    def wait(self, after: int, timeout_s: float) -> Record | None: ...
    def counters(self) -> Counters: ...
    def lateness(self) -> Histogram: ...
    def bus_time(self) -> Histogram: ...
    def action_age(self) -> Histogram: ...
    def recent_ticks(self) -> list[dict[str, Any]]: ...
