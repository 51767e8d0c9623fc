"""One request after another fails, on a virtual clock: whichever it is, the arm starts and stops without a blow."""

from __future__ import annotations

from contextlib import suppress

import pytest

from edge_runtime.errors import BusError
from edge_runtime.motors.stopping import LIMP_S

from .bench import POSE, Hurry, held
from .wire import Stage

SUNK = [1500, 2300, 2100, 2200, 2300, 2500]


def sink(stage: Stage) -> None:
    """Torque is on from before, and the arm has sunk from its goal with the little force that was left to it."""
    stage.arm.place(SUNK)
    for servo, goal in zip(stage.arm.servos.values(), POSE, strict=True):
        servo.set("Torque_Enable", 0)
        servo.set("Goal_Position", goal)
    for servo in stage.arm.servos.values():
        servo.set("Torque_Limit", 0)
        servo.set("Torque_Enable", 1)
    stage.robot._torque_limits = {}
    stage.arm.log.clear()
    stage.wire.requests = 0


def run(stage: Stage) -> None:
    """A start, and a limp; what must hold of every one, whatever the line does."""
    with suppress(BusError):
        stage.robot.prepare()
    assert stage.arm.positions().tolist() == SUNK
    began = stage.clock.seconds
    with suppress(BusError):
        stage.robot.stop("limp", Hurry())
        assert not any(held(stage.arm, "Torque_Enable")) or not stage.arm.log.writes("Goal_Position")
    assert stage.clock.seconds - began <= LIMP_S
    assert stage.arm.positions().tolist() == SUNK


KINDS = ("silent", "deaf", "full")


def sweep(stage: Stage, kinds: tuple[str, ...], span: int) -> None:
    """From each request of a run on, `span` of them fail; the kind changes from one to the next."""
    sink(stage)
    run(stage)
    for step in range(1, stage.wire.requests + 1):
        sink(stage)
        kind = kinds[step % len(kinds)]
        stage.wire.fail = lambda number, data: kind if step <= number < step + span else "ok"  # noqa: B023
        run(stage)
        stage.wire.fail = lambda number, data: "ok"


def test_whichever_request_fails_the_arm_does_not_move_by_itself(stage: Stage) -> None:
    sweep(stage, KINDS, 1)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("span", [1, 8, 10_000])
def test_whichever_requests_fail_and_however_many(stage: Stage, kind: str, span: int) -> None:
    sweep(stage, (kind,), span)
