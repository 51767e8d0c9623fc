"""The proxy that tests of bad networks stand on: it passes on, and does to the line what it is told."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from scripts.rig.proxy import Link, Proxy


@pytest.fixture
def echo() -> Iterator[str]:
    """Returns every byte."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    def answer(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(4096):
                    connection.sendall(data)
            except OSError:
                return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def dial(proxy: Proxy) -> socket.socket:
    host, port = proxy.address.split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def round_trip_s(line: socket.socket, size: int = 1) -> float:
    began = time.monotonic()
    line.sendall(bytes(size))
    left = size
    while left:
        left -= len(line.recv(65536))
    return time.monotonic() - began


def test_it_passes_on_and_delays(echo: str) -> None:
    with Proxy(echo) as proxy, dial(proxy) as line:
        round_trip_s(line, 10_000)
        proxy.link = Link(delay_s=0.1)
        assert round_trip_s(line) >= 0.2
        proxy.link = Link(bytes_per_s=100_000)
        assert round_trip_s(line, 20_000) >= 0.2
        assert proxy.connections == 1


def test_a_black_hole_takes_all_and_gives_it_back_when_it_ends(echo: str) -> None:
    with Proxy(echo) as proxy, dial(proxy) as line:
        proxy.link = Link(black_hole=True)
        line.sendall(b"lost?")
        line.settimeout(0.1)
        with pytest.raises(TimeoutError):
            line.recv(16)
        proxy.link = Link()
        line.settimeout(20)
        assert line.recv(16) == b"lost?"


def test_a_reset_is_a_reset(echo: str) -> None:
    with Proxy(echo) as proxy, dial(proxy) as line:
        round_trip_s(line)
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            line.recv(16)


def test_nobody_at_the_far_end_ends_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with Proxy(address) as proxy, dial(proxy) as line:
        line.settimeout(20)
        assert line.recv(16) == b""
