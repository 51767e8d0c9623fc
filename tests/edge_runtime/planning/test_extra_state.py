"""Numbers behind a URL: a kept connection, one that was closed, answers that are none, and one that never ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from edge_runtime.errors import DeviceError
from edge_runtime.planning.extra_state import HttpVector

Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def serving(answer: Answer) -> Iterator[tuple[str, list[int]]]:
    """The URL of a server whose every GET is answered by `answer`; and the client's port of each."""
    ports: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            ports.append(self.client_address[1])
            answer(self)

        def log_message(self, *arguments: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """A client that went away in the midst is what some of these tests are about."""

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/state", ports
        finally:
            server.shutdown()
            thread.join()


def saying(body: bytes, status: int = 200, *, close: bool = False) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)
        handler.close_connection = close

    return answer


@contextmanager
def vector(url: str, timeout_s: float = 10.0) -> Iterator[HttpVector]:
    made = HttpVector("place", url, timeout_s)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("body", [b"[1, 2.5, -3]", b'{"values": [1, 2.5, -3], "unit": "m"}'])
def test_one_connection_serves_all_reads(body: bytes) -> None:
    with serving(saying(body)) as (url, ports), vector(url) as place:
        for _ in range(3):
            np.testing.assert_array_equal(place.read(), np.array([1, 2.5, -3], np.float32))
        assert len(ports) == 3
        assert len(set(ports)) == 1


def test_a_connection_that_was_closed_is_made_again() -> None:
    with serving(saying(b"[1]", close=True)) as (url, ports), vector(url) as place:
        assert [place.read()[0] for _ in range(3)] == [1, 1, 1]
        assert len(set(ports)) == 3


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (saying(b"[1, 2"), "answers no list of numbers"),
        (saying(b"[1, NaN]"), "answers no list of finite numbers"),
        (saying(b"[[1]]"), "answers no list of finite numbers"),
        (saying(b"[1" + b"0" * 400 + b"]"), "answers no list of numbers"),
        (saying(b"[" * 50_000), "answers no list of numbers"),
        (saying(b'{"values": {"a": 1}}'), "answers no list of numbers"),
        (saying(b'["a"]'), "answers no list of numbers"),
        (saying(b"gone", 404), "answers 404 Not Found"),
    ],
)
def test_what_is_no_vector_is_told_and_the_next_read_is_a_new_one(answer: Answer, said: str) -> None:
    with serving(answer) as (url, _), vector(url) as place:
        for _ in range(2):
            with pytest.raises(DeviceError, match=f"extra_state.place: {url} {said}"):
                place.read()


def test_an_answer_that_never_ends_is_given_up() -> None:
    """Each piece is in time, all of them are not."""
    ended = threading.Event()

    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "60000")
        handler.end_headers()
        while not ended.wait(0.01):
            handler.wfile.write(b" ")

    with serving(drip) as (url, _), vector(url, timeout_s=0.2) as place:
        try:
            with pytest.raises(DeviceError, match=r"the answer takes more than 0\.2 s"):
                place.read()
        finally:
            ended.set()
