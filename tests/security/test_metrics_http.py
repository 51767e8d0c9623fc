"""The metrics answer programs on this machine, not a page of another site in its browser."""

from __future__ import annotations

import http.client

import pytest

pytest.importorskip("prometheus_client")

from edge_runtime.program.exposition import Exposition


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:9000"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example:9000"}, 403),
        ({"Origin": "http://evil.example"}, 403),
    ],
)
def test_a_page_of_another_origin_is_refused(headers: dict[str, str], status: int) -> None:
    with Exposition(0) as exposition:
        connection = http.client.HTTPConnection("127.0.0.1", exposition.port, timeout=20)
        connection.request("GET", "/metrics", headers=headers)
        answer = connection.getresponse()
        assert answer.status == status
        assert (b"is not" in answer.read()) == (status == 403)
        connection.close()
