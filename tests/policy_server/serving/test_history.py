"""A policy that looks at several observations: the session keeps them, and starts anew when the robot does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from policy_server import bundle
from policy_server.server import PolicyServer
from scripts.rig.bundles import write_bundle
from scripts.rig.robots import Robot, hello_to, look
from tests.policy_server.conftest import serving


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "tiny", observations=3)


@pytest.fixture
def server(path: Path) -> Iterator[PolicyServer]:
    with serving(path) as server:
        yield server


def first_row(robot: Robot, number: int, state: float, session: int = 1) -> float:
    actions = robot.ask(look(number, timestep=number, state=state, session=session)).actions
    np.testing.assert_array_equal(actions[0], actions[0, 0])
    return float(actions[0, 0])


def test_the_last_observations_go_in_oldest_first_and_the_first_stands_for_those_before(
    server: PolicyServer, path: Path
) -> None:
    with Robot(server.address, hello_to(bundle.load(path).policy)) as robot:
        robot.welcomed()
        assert [first_row(robot, number, state) for number, state in enumerate((1, 2, 3, 4))] == [111, 112, 123, 234]


def test_a_new_session_or_episode_begins_without_the_old_one(server: PolicyServer, path: Path) -> None:
    with Robot(server.address, hello_to(bundle.load(path).policy)) as robot:
        robot.welcomed()
        assert [first_row(robot, number, 5) for number in range(3)] == [555] * 3
        assert first_row(robot, 3, 2, session=2) == 222


def test_robots_do_not_share_their_past(server: PolicyServer, path: Path) -> None:
    hello = hello_to(bundle.load(path).policy)
    with Robot(server.address, hello) as one, Robot(server.address, hello) as other:
        one.welcomed()
        other.welcomed()
        first_row(one, 0, 7)
        assert first_row(other, 0, 1) == 111
        assert first_row(one, 1, 8) == 778
