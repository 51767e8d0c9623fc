"""docs/your-policy.md, followed to the letter: each of its policies moves the virtual arm."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from scripts.rig.program import Arm, Edge, Server

PAGE = Path(__file__).resolve().parents[2] / "docs" / "your-policy.md"
MOST_LINES = 15  # of code that a user writes
START = "edge-runtime start"
MOVED = 20  # different goals of the first servo


@dataclass(frozen=True)
class Section:
    title: str
    file: str
    code: str
    commands: list[str]


def sections() -> list[Section]:
    """Those with code: its file, and the commands behind it."""
    found = []
    for part in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        if block := re.search(r"```python\n# (\S+)\n(.*?)```\n(.*)", part, re.DOTALL):
            commands = re.findall(r"^    (\w.*)$", block[3], re.MULTILINE)
            found.append(Section(part.partition("\n")[0], block[1], block[2], commands))
    return found


def test_the_page_has_three_policies_of_few_lines() -> None:
    assert [section.title for section in sections()] == ["In Python", "An ONNX graph", "A flow or a diffusion policy"]
    for section in sections():
        assert len([line for line in section.code.splitlines() if line.strip()]) <= MOST_LINES
        assert [" ".join(each.split()[:2]) for each in section.commands[-2:]] == ["policy-server start", START]


@pytest.fixture
def fresh_arm(tmp_path: Path) -> Iterator[Arm]:
    """Its log holds what this test wrote, and nothing else."""
    with Arm(tmp_path, "--cameras=[]") as arm:
        yield arm


@pytest.mark.long
@pytest.mark.parametrize("section", sections(), ids=lambda section: section.title)
def test_its_policy_moves_the_arm(section: Section, fresh_arm: Arm, folder: Path) -> None:
    arm = fresh_arm
    (folder / section.file).write_text(section.code)
    *before, serve, start = map(shlex.split, section.commands)
    for program, *arguments in before:
        command = [] if program == "python" else ["-m", "policy_server.export.cli"]
        subprocess.run([sys.executable, *command, *arguments], cwd=folder, check=True, timeout=120)
    names = {flag.partition("=")[0] for flag in start[2:]}
    robot = [flag for flag in arm.robot if flag.partition("=")[0] in names]  # where this arm is
    assert len(robot) == len(names)
    (offered,) = serve[2:]
    with (
        Server(folder, offered) as server,
        Edge(folder, *robot, "--robot.bus_timeout_ms=100", f"--server_address={server.address}") as edge,
    ):
        edge.wait_for("-> running")
        while len({goal.get("1") for goal in arm.written("Goal_Position")}) < MOVED:
            assert edge.process.poll() is None, edge.text
        assert edge.end() == 0, edge.text
    assert " failed (id " not in server.text
