"""One arm and one server for the tests of a module; each test has its own runtime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.rig.program import Arm, Server


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arm]:
    with Arm(tmp_path_factory.mktemp("arm"), "--cameras=[]") as arm:
        yield arm


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server"), "act_so101_pick_place") as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path
