"""What the loop cannot do is said once: actions that are not finite, joints that do not follow."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edge_runtime import runtime
from edge_runtime.config import NoRobotConfig, StartConfig
from edge_runtime.errors import FollowingFault
from edge_runtime.reporting.run_stats import RunStats
from edge_runtime.robots.none import NoRobot
from edge_runtime.runtime import Runtime
from tests.edge_runtime.link.scripted_server import JOINTS, ScriptedServer, chunk_for

ROBOT = NoRobotConfig(joints={joint.name: joint.unit for joint in JOINTS})


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    yield server
    server.kill()


class Until:
    """A listener that ends the run once `holds`, and lets it go on for some records more."""

    def __init__(self, holds: Any, more: int = 0) -> None:
        self._holds, self._more, self.run = holds, more, threading.Event()
        self.stop: Any = None

    def see(self, record: Any, stats: RunStats) -> None:
        if self._holds(record, stats):
            self._more -= 1
            if self._more < 0:
                self.stop()


def run(config: StartConfig, until: Until) -> list[RunStats]:
    told: list[RunStats] = []
    robot = Runtime(config, listeners=[until], tell=told.append)
    until.stop = robot.stop
    robot.run()
    return told


def test_a_robot_whose_actions_are_not_finite_is_holding_and_says_so_once(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """As from a server that does not look; it once was `running` for ever, and silent."""
    server.answer = lambda observation: chunk_for(observation, np.nan)
    config = StartConfig(robot=ROBOT, server_address=server.address, duration_s=60, status=False)
    with caplog.at_level(logging.INFO):
        (stats,) = run(config, Until(lambda record, stats: stats.state.current == "holding", more=20))
    assert [state for _, state in stats.state.changes] == ["starting", "holding", "stopping"]
    assert stats.loop.counters()["executed"] == 0
    assert sum("not finite" in message for message in caplog.messages) == 1


class Stuck(NoRobot):
    def write(self, goals: Any) -> None:
        """Something is in the way."""


@pytest.mark.parametrize("what", ["warn", "stop"])
def test_a_joint_that_does_not_follow_ends_the_run_and_is_not_tried_again(
    server: ScriptedServer,
    what: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Any,
) -> None:
    """With `warn` it is a line and a counter, with `stop` exit 74."""
    monkeypatch.setattr(runtime, "make_robot", Stuck)
    server.answer = lambda observation: chunk_for(observation, 90.0)
    robot = replace(ROBOT, following_error=what, following_s=0.2)
    config = StartConfig(robot=robot, server_address=server.address, duration_s=60, status=False, fault_folder=tmp_path)
    until = Until(lambda record, stats: stats.loop.counters()["following_error"] > 10)
    if what == "warn":
        (stats,) = run(config, until)
        assert stats.report()["loop"]["following_error"] > 10
        assert sum("a does not follow: it is at 0.0, its goal at " in message for message in caplog.messages) == 1
        return
    with pytest.raises(FollowingFault, match=r"following error: a is .* is something in the way") as fault:
        run(config, until)
    assert fault.value.exit_code == 74


def test_a_joint_of_a_limit_must_be_one_of_the_robot(server: ScriptedServer) -> None:
    for name in ("max_acceleration", "following_limit", "max_relative_target"):
        config = StartConfig(
            robot=replace(ROBOT, **{name: {"c": 5.0}}), server_address=server.address, status=False, duration_s=1
        )
        with pytest.raises(ValueError, match=rf"robot\.{name}\.c: is no joint of it; expected one of a, b"):
            Runtime(config, tell=lambda stats: None).run()
