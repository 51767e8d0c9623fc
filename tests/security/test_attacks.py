"""Every attack against a server in a process of its own, with an honest robot beside it that notices nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from policy_server import bundle
from scripts.rig.bundles import write_bundle
from scripts.rig.program import Server
from tests.security.attacks import ATTACKS, OK, Target

ROOT = Path(__file__).resolve().parents[2]
MEMORY_MB = 5.0
FLAGS = (
    "--providers=cpu",
    "--threads=1",
    "--limits.unfinished_s=2",
    "--limits.handshake_s=2",
)


@dataclass(frozen=True)
class Besieged:
    """The server's process, where it listens, the honest robot beside the attacker, and the memory before it came."""

    pid: int
    target: Target
    honest: subprocess.Popen[str]
    base_mb: float

    def grown_mb(self) -> float:
        return resident_mb(self.pid) - self.base_mb


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024


def full_house(target: Target) -> None:
    """As many honest robots as there is room for, which come, ask and go: the server has all its threads."""
    robots = [target.robot() for _ in range(15)]
    for robot in robots:
        with robot:
            assert robot.ask(target.observation(1)).observation == 1


@pytest.fixture(scope="module")
def besieged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Besieged]:
    path = write_bundle(tmp_path_factory.mktemp("bundles") / "besieged", cameras=[("front", 48, 64)], extra=2, chunk=50)
    with Server(path.parent, str(path), *FLAGS) as server:
        honest = subprocess.Popen(
            [sys.executable, "-m", "tests.security.honest", server.address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        try:
            assert honest.stdout is not None
            assert honest.stdout.readline() == "running\n"
            target = Target(server.address, bundle.load(path).policy)
            full_house(target)
            pid = server.process.pid
            yield Besieged(pid, target, honest, resident_mb(pid))
        finally:
            honest.kill()
            honest.communicate()


@pytest.mark.parametrize("name", ATTACKS)
def test_a_typed_status_each(besieged: Besieged, name: str) -> None:
    attack, expected = ATTACKS[name]
    statuses = list(attack(besieged.target))
    assert statuses
    assert set(statuses) <= expected
    assert set(statuses) != {OK} or name == "a thousand connects"
    with besieged.target.robot() as robot:  # and the next one is served as ever
        assert robot.ask(besieged.target.observation(1)).observation == 1


def test_memory_comes_back(besieged: Besieged) -> None:
    assert besieged.grown_mb() < MEMORY_MB


def test_the_honest_robot_noticed_nothing(besieged: Besieged) -> None:
    said, _ = besieged.honest.communicate(timeout=20)
    lived: dict[str, Any] = json.loads(said)
    assert lived["ticks"] > 30
    assert lived["starved"] == 0
    assert lived["failures"] == 0
    assert lived["reconnects"] == 0
    assert lived["asked"] - lived["chunks"] <= 1  # the last may be on its way
