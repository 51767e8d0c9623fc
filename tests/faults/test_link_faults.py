"""Network and server fail between robot and policy: the arm goes on with what it has, holds, and goes on again."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from time import monotonic as now

import pytest

from edge_runtime.wire.messages import Answer, Observation
from scripts.rig.program import Edge
from scripts.rig.proxy import Link
from tests.faults.bench import STEP, TICKS_PER_UNIT, Bench, swing


@pytest.fixture(autouse=True)
def arm_goes_on_within_its_limits(rig: Bench) -> Iterator[None]:
    """Whatever the link does, the loop goes on and no step is too long; afterwards all is well."""
    began = now()
    yield
    rig.proxy.link = Link()
    rig.wait_for_goals(3)
    way = rig.goals(began)
    assert all(
        abs(later[servo] - earlier[servo]) <= STEP * TICKS_PER_UNIT[servo]
        for earlier, later in pairwise(way)
        for servo in later
    )
    assert rig.torque == [1] * 6


def test_a_reset(rig: Bench, edge: Edge) -> None:
    rig.proxy.reset()
    edge.wait_for("no stream: ")
    edge.wait_for("reconnected to")
    rig.wait_for_goals(20)
    assert "-> holding" not in "".join(edge.lines[-6:])  # a second of plan covered it


def test_a_black_hole(rig: Bench, edge: Edge) -> None:
    """The plan drains, the arm holds; the dead connection is given up and a fresh one takes its place."""
    rig.proxy.link = Link(black_hole=True)
    edge.wait_for("-> holding")
    rig.wait_for_goals(3)
    rig.proxy.link = Link()
    edge.wait_for("holding -> running")


def test_a_link_of_one_megabit_with_300_ms_and_200_ms_of_jitter(rig: Bench, edge: Edge) -> None:
    lines = len(edge.lines)
    rig.proxy.link = Link(delay_s=0.15, jitter_s=0.2, bytes_per_s=125_000)
    rig.wait_for_goals(40)
    assert not [line for line in edge.lines[lines:] if "no stream" in line or "-> fault" in line]


def test_a_server_that_is_killed_and_comes_back(rig: Bench, edge: Edge) -> None:
    rig.server.kill()
    edge.wait_for("running -> draining")
    edge.wait_for("draining -> holding")
    rig.wait_for_goals(3)
    rig.server.restart()
    edge.wait_for("holding -> running")


def test_a_server_that_stops_answering_and_wakes(rig: Bench, edge: Edge) -> None:
    """Connected, and silent for longer than the plan lasts; what it says then is about the past."""
    late: list[Observation] = []

    def nothing(observation: Observation) -> Answer | None:
        late.append(observation)
        return None

    rig.server.answer = nothing
    edge.wait_for("-> holding")
    rig.wait_for_goals(3)
    rig.server.answer = swing
    edge.wait_for("holding -> running")
    assert late
