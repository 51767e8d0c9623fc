"""One request after another fails, on a virtual clock: whichever it is, the arm starts and stops without a blow."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest

from edge_runtime.errors import BusError
from edge_runtime.motors.stopping import LIMP_S

from .bench import POSE, Hurry, Stage

SUNK = [1500, 2300, 2100, 2200, 2300, 2500]
DEGREE = 12  # counts
KINDS = ("silent", "deaf", "full")


def sink(stage: Stage) -> None:
    """Torque is on from before, and the arm sinks from its goal with the little force that was left to it."""
    arm = stage.arm
    arm.place(SUNK)
    for servo, goal in zip(arm.servos.values(), POSE, strict=True):
        servo.set("Torque_Enable", 1)
        servo.set("Torque_Limit", 0)
        servo.set("Goal_Position", goal)
    stage.robot._torque_limits = {}
    arm.advance()
    arm.moments.clear()
    stage.port.requests = 0


def run(stage: Stage) -> None:
    """A start, and a limp; what must hold of every one, whatever the line does."""
    with suppress(BusError):
        stage.robot.prepare()
    began = stage.clock.seconds
    with suppress(BusError):
        stage.robot.stop("limp", Hurry())
        assert not any(stage.arm.values("Torque_Enable")) or not stage.robot._torque_limits
    assert stage.clock.seconds - began <= LIMP_S
    stage.arm.advance()
    positions = np.array([moment.positions for moment in stage.arm.moments])
    # Gravity pulls towards greater counts: nothing rises by itself, and what has no weight stays.
    rise = np.maximum.accumulate(positions) - positions
    assert rise.max() <= DEGREE
    assert np.abs(positions - SUNK)[:, [0, 4, 5]].max() <= DEGREE
    for before, after in pairwise(stage.arm.moments):
        for joint in range(6):
            if after.torque[joint] and not before.torque[joint]:
                assert abs(after.goals[joint] - after.positions[joint]) <= DEGREE


def sweep(stage: Stage, kinds: tuple[str, ...], span: int) -> None:
    """From each request of a run on, `span` of them fail; the kind changes from one to the next."""
    sink(stage)
    run(stage)
    for step in range(1, stage.port.requests + 1):
        kind = kinds[step % len(kinds)]
        sink(stage)
        stage.port.fail = lambda number, data: kind if step <= number < step + span else "ok"  # noqa: B023
        run(stage)
        stage.port.fail = lambda number, data: "ok"


def test_whichever_request_fails_the_arm_does_not_move_by_itself(stage: Stage) -> None:
    sweep(stage, KINDS, 1)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("span", [1, 8, 10_000])
def test_whichever_requests_fail_and_however_many(stage: Stage, kind: str, span: int) -> None:
    sweep(stage, (kind,), span)
