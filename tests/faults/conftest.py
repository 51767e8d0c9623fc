"""One bench for the tests of a module, and one runtime for those that the arm survives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scripts.rig.program import Edge
from tests.faults.bench import Bench, bench


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench(tmp_path_factory.mktemp("rig")) as rig:
        yield rig


@pytest.fixture(scope="module")
def edge(rig: Bench) -> Iterator[Edge]:
    """A runtime that goes on from test to test, running at the start of each."""
    with rig.running() as edge:
        yield edge
        assert edge.end() == 0, edge.text
