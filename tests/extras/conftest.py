"""What only `make test-extras` runs: tests whose other side is a published package that the core does without."""

from __future__ import annotations

import pytest

from tests.policy_server.conftest import engines, seeing, tiny  # noqa: F401


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/extras/" in item.nodeid:
            item.add_marker(pytest.mark.extras)
