"""A robot whose plan is long asks for nothing, and costs next to nothing."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge_runtime.wire.messages import Chunk, Observation
from scripts.rig.program import Edge
from scripts.rig.usage import cpu_s
from tests.edge_runtime.link.scripted_server import POLICY, ScriptedServer

pytestmark = pytest.mark.long

LOOKED_AT_S = 3.0
ROWS = 1000


def test_idle_it_polls_nobody_and_writes_nothing(folder: Path) -> None:
    asked: list[Observation] = []

    def answer(observation: Observation) -> Chunk:
        asked.append(observation)
        actions = np.zeros((ROWS, 2), np.float32)
        return Chunk(observation.id, observation.session, observation.timestep, actions, POLICY.digest)

    server = ScriptedServer(policy=replace(POLICY, chunk_size=ROWS, fps=1.0), answer=answer)
    robot = ("--robot.type=none", "--robot.joints={a.pos: degrees, b.pos: degrees}", "--fps=1")
    try:
        with Edge(folder, *robot, f"--server_address={server.address}") as edge:
            edge.wait_for("-> running")
            before_s = cpu_s(edge.process.pid)
            threading.Event().wait(LOOKED_AT_S)
            used_s = cpu_s(edge.process.pid) - before_s
            assert edge.end() == 0, edge.text
    finally:
        server.kill()
    assert used_s <= 0.02 * LOOKED_AT_S + 0.02  # 2 % of a core, and two ticks of the kernel's count
    assert len(asked) == 1
    assert list(folder.iterdir()) == []
