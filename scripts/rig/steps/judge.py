"""What must hold of every life of an arm, whatever failed in it, by the servos' own account."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from edge_runtime.motors.stopping import LIMP_S
from edge_runtime.virtual_arm.calibration import CALIBRATION
from scripts.rig.steps.life import FPS, MAX_ACCELERATION, MAX_SPEED, SIGNALS, Account

DEGREE = 12  # counts
ROUNDING = 2  # counts, of a goal on its way to the register
WINDOW_S = 0.2  # in which the speed of a joint is taken: its servo makes each goal's step as fast as it can
PARK_S = 5.0
PASSING = ("no answer", "answer lost", "write not taken", "echo lost", "lie", "none", "", *SIGNALS)  # the line is well

Counts = npt.NDArray[np.float64]

TICKS_PER_UNIT: Counts = np.array([4095 / 360] * 5 + [(3186 - 1934) / 100])
STEP: Counts = MAX_SPEED / FPS * TICKS_PER_UNIT
GAIN: Counts = MAX_ACCELERATION / FPS**2 * TICKS_PER_UNIT
LOW: Counts = np.array([entry.range_min for entry in CALIBRATION.values()], np.float64)
HIGH: Counts = np.array([entry.range_max for entry in CALIBRATION.values()], np.float64)
HEAVY = np.array([False, True, True, True, False, False])  # gravity draws these, towards greater counts


def judge(account: Account) -> list[str]:
    """Everything in `account` that must not be, a line each; empty when all is well."""
    return [
        f"{account.step}: {said}"
        for rule in (_goals, _speed, _rest, _force, _end, _plan)
        for said in dict.fromkeys(rule(account))
    ]


def _goals(account: Account) -> Iterator[str]:
    """Goals of a run keep to speed, acceleration and range; those of park to speed and range."""
    before: Counts | None = None
    pace: Counts | None = None
    lost, part = 0, ""
    for write in account.goals:
        if not write.taken:
            lost += 1
            continue
        goals = np.array(write.goals, np.float64)
        on = np.array(write.torque)
        if before is not None and write.part in ("run", "park"):
            change = goals - before
            most = STEP * (1 + lost) + ROUNDING
            far = np.abs(goals - np.array(write.positions)) > DEGREE
            moved = (
                on & (np.abs(change) > most) & (far | (write.part == "run"))
            )  # a limp ends a park: it sinks no farther
            yield from _name("{0} makes a step of {1:.0f} counts", moved, change)
            outside = np.maximum(LOW - goals, goals - HIGH)
            was = np.maximum(LOW - before, before - HIGH)
            yield from _name("{0} is sent {1:.0f} counts out of its range", (outside > np.maximum(was, 0) + 1), outside)
            if write.part == part == "run" and not lost:
                if pace is not None:
                    low, high = np.minimum(pace, 0) - GAIN - ROUNDING, np.maximum(pace, 0) + GAIN + ROUNDING
                    wrong = on & ((change < low) | (change > high))
                    yield from _name("{0} gains speed or turns by {1:.0f} counts in one tick", wrong, change - pace)
                pace = change
            else:
                pace = None
        else:
            pace = None
        before, lost, part = goals, 0, write.part


def _speed(account: Account) -> Iterator[str]:
    """With all its force no joint moves faster than it may, but to a goal that lost writes have made more distant."""
    lost = 1 + _most_lost(account)
    time = np.array([moment.time_s for moment in account.moments])
    positions = np.array([moment.positions for moment in account.moments])
    full = np.array([moment.torque for moment in account.moments]) & (
        np.array([moment.limits for moment in account.moments]) >= np.array([1000] * 5 + [500])
    )
    end = np.searchsorted(time, time + WINDOW_S, side="right") - 1
    weak = np.vstack([np.zeros((1, 6), int), np.cumsum(~full, axis=0)])
    whole = weak[end + 1] == weak[np.arange(len(time))]
    way = np.abs(positions[end] - positions)
    most = 1.1 * MAX_SPEED * TICKS_PER_UNIT * (WINDOW_S + account.late_s) + STEP * lost + ROUNDING
    wrong = (whole & (way > most)).any(axis=0)
    yield from _name("{0} moves by {1:.0f} counts in 0.2 s", wrong, way.max(axis=0))


def _rest(account: Account) -> Iterator[str]:
    """Where nothing is to move, nothing rises, and what has no weight stays; but for a step that was under way."""
    slack = DEGREE + STEP * (1 + _most_lost(account))
    for first, last, part in _parts(account):
        moments = account.moments[first:last]
        if part == "park":
            full = [index for index, moment in enumerate(moments) if moment.limits[0] < 1000 and moment.torque[0]]
            moments = moments[full[0] :] if full else []
        if part == "run" or not moments:
            continue
        positions = np.array([moment.positions for moment in moments])
        rise = (np.maximum.accumulate(positions) - positions).max(axis=0)
        yield from _name(f"{{0}} rises by {{1:.0f}} counts in {part}", HEAVY & (rise > slack), rise)
        away = np.abs(positions - positions[0]).max(axis=0)
        yield from _name(f"{{0}} moves by {{1:.0f}} counts in {part}", ~HEAVY & (away > slack), away)


def _force(account: Account) -> Iterator[str]:
    """Force is given only where the goal is where the joint is."""
    for before, after in pairwise(account.moments):
        away = np.abs(np.array(after.goals) - np.array(after.positions))
        more = np.array(after.torque) & (~np.array(before.torque) | (np.array(after.limits) > np.array(before.limits)))
        yield from _name("{0} is given force {1:.0f} counts from its goal", more & (away > DEGREE), away)


def _end(account: Account) -> Iterator[str]:
    """Torque is off in time. Where that could not be confirmed it is told, and only a line that is lost excuses it."""
    if not account.ended:
        yield "runtime and supervisor have not come to an end"
    if any(account.torque) and account.goals:  # before the first of them it is not ours
        if account.step.policy == "hold" and account.step.kind in SIGNALS:
            pass  # that is what was asked for
        elif account.error is None:
            yield "torque is still on, and nothing says so"
        elif account.error.exit_code == 0:
            yield "torque is still on, and the exit code says that all is well"
        elif account.step.kind in PASSING:
            yield f"torque is still on although the line came back: {account.error}"
    for first, last, part in _parts(account):
        if part not in ("limp", "park") or last - first < 1:
            continue
        began = account.moments[max(first - 1, 0)].time_s
        off = [moment.time_s for moment in account.moments[first:last] if not any(moment.torque)]
        within = LIMP_S + (PARK_S if part == "park" else 0.0)
        if off and off[0] - began > within + account.late_s:
            yield f"torque is off {off[0] - began:.2f} s after a {part} began"


def _plan(account: Account) -> Iterator[str]:
    """After a fault the arm stays where it was started again: its plan is void, and no other comes."""
    if not account.faults:
        return
    runs = [span for span in _parts(account) if span[2] == "run"]
    for first, last, _ in runs[1:]:
        goals = np.array([moment.goals for moment in account.moments[first:last]])
        if len(goals):
            way = np.abs(goals - goals[0]).max(axis=0)
            yield from _name("{0} goes on by {1:.0f} counts after a fault", way > DEGREE, way)


def _most_lost(account: Account) -> int:
    """The most writes of goals in a row that did not arrive."""
    most = row = 0
    for write in account.goals:
        row = 0 if write.taken else row + 1
        most = max(most, row)
    return most


def _parts(account: Account) -> Iterator[tuple[int, int, str]]:
    ends = [first for first, _ in account.parts[1:]] + [len(account.moments)]
    for (first, part), last in zip(account.parts, ends, strict=True):
        yield first, last, part


def _name(said: str, wrong: npt.NDArray[np.bool_], values: Counts) -> Iterator[str]:
    for joint in np.flatnonzero(wrong):
        yield said.format(list(CALIBRATION)[joint], values[joint])
