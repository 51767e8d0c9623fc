"""Where a server listens: loopback unless asked, and what is asked for is what is bound."""

from __future__ import annotations

import socket

import grpc
import pytest

from policy_server.config import ServerConfig
from policy_server.door.address import Address


def test_the_default_is_this_machine_alone() -> None:
    address = Address.parse(ServerConfig().listen)
    assert (address.host, address.is_local) == ("127.0.0.1", True)


@pytest.mark.parametrize(
    ("text", "host", "local"),
    [("127.0.0.2:0", "127.0.0.2", True), ("[::1]:80", "::1", True), ("0.0.0.0:80", "0.0.0.0", False)],
)
def test_an_address_is_what_it_says(text: str, host: str, local: bool) -> None:
    address = Address.parse(text)
    assert (address.host, address.is_local) == (host, local)
    assert str(address) == text


def test_what_is_asked_for_is_bound_and_nothing_else() -> None:
    server = grpc.server(None, options=[("grpc.so_reuseport", 0)])
    bound = Address.parse("127.0.0.2:0").bind(server)
    server.start()
    try:
        socket.create_connection((bound.host, bound.port), 5).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", bound.port), 5)
    finally:
        server.stop(None).wait()
