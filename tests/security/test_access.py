"""Who gets in and who does not, over real connections; and that the robot says which it was, in one line, at once."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from edge_runtime.config import TlsConfig
from edge_runtime.errors import AccessError, ConfigError, StreamError
from edge_runtime.link import diagnosis
from edge_runtime.link.channel import Access
from edge_runtime.wire.messages import Policy
from policy_server import bundle
from policy_server import config as server_config
from policy_server.config import ServerConfig
from policy_server.server import PolicyServer
from scripts.rig.proxy import Proxy
from scripts.rig.robots import ACT, DESCRIBE, watch_health
from tests.policy_server.conftest import serving
from tests.security.conftest import describe, robot_tls

NOBODY = 65534
Tokens = Callable[..., Path]


def server_tls(folder: Path, *, client_ca: Path | None = None) -> server_config.TlsConfig:
    return server_config.TlsConfig(
        cert=folder / "server.crt", key=folder / "server.key", client_ca=client_ca and client_ca / "ca.crt"
    )


class Log(logging.Handler):
    """Hears what the server says, and can be waited on."""

    def __init__(self) -> None:
        super().__init__()
        self._said = threading.Condition()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        with self._said:
            self.lines.append(record.getMessage())
            self._said.notify_all()

    def wait_for(self, *parts: str) -> str:
        def found() -> str:
            return next((line for line in self.lines if all(part in line for part in parts)), "")

        with self._said:
            assert self._said.wait_for(found, 20), self.lines
            return found()


@pytest.fixture
def log() -> Iterator[Log]:
    handler = Log()
    logger = logging.getLogger("policy_server")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


def refused(access: Access) -> str:
    """The sentence of the AccessError, which is exit 77 and not tried again: patience ends with a StreamError."""
    with pytest.raises(AccessError) as error:
        describe(access)
    assert error.value.exit_code == 77
    said = str(error.value)
    assert said.startswith(access.address)
    assert "\n" not in said
    return said


@pytest.fixture
def policy(tiny: Path) -> Policy:
    return bundle.load(tiny).policy


# Tokens.


def test_a_token_lets_in_and_a_wrong_one_is_told_so_and_nothing_else(
    tiny: Path, policy: Policy, token_file: Tokens, log: Log
) -> None:
    good, other = "a-token-of-the-lab-1", "a-token-of-the-lab-2"
    with serving(tiny, wait=False, token_file=token_file(good, other)) as server:
        for token in (good, other):
            assert describe(Access(server.address, token_file=token_file(token, name="mine"))).policies == (policy,)
        said = refused(Access(server.address, token_file=token_file("not-a-token-of-the-lab", name="mine")))
        assert said == f"{server.address} denied access: token missing or wrong"
        assert refused(Access(server.address)) == said
        log.wait_for("127.0.0.1", "refused: token missing or wrong")
        assert not any(good in line or "not-a-token" in line for line in log.lines)


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", "a-token-of-the-lab-1"),),
        (("authorization", "Basic a-token-of-the-lab-1"),),
        (("authorization", "Bearer a-token-of-the-lab-"),),
        (("authorization", "Bearer "),),
        (("authorization", "Bearer a-token-of-the-lab-1"), ("authorization", "Bearer other")),
        (("authorization-bin", b"Bearer a-token-of-the-lab-1"),),
    ],
    ids=["none", "bare", "basic", "shorter", "empty", "twice", "binary"],
)
def test_every_call_needs_the_token(tiny: Path, token_file: Tokens, metadata: Any) -> None:
    with (
        serving(tiny, wait=False, token_file=token_file("a-token-of-the-lab-1")) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        for call in (
            lambda: channel.unary_unary(DESCRIBE)(b"", timeout=20, metadata=metadata),
            lambda: next(channel.stream_stream(ACT)(iter([b""]), timeout=20, metadata=metadata)),
            lambda: channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=20, metadata=metadata),
            lambda: next(watch_health(channel)),
            lambda: channel.unary_unary("/no.such/Thing")(b"", timeout=20, metadata=metadata),
        ):
            with pytest.raises(grpc.RpcError) as error:
                call()
            assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert error.value.details() == "token missing or wrong"


def test_a_token_never_leaves_this_machine_unencrypted(token_file: Tokens, certs: Path) -> None:
    token = token_file()
    for insecure in (False, True):
        with pytest.raises(ConfigError, match="token_file: the token would go to gpu-box:8080 unencrypted"):
            Access("gpu-box:8080", token_file=token, insecure=insecure)
    assert Access("unix:/run/policy.sock", token_file=token).metadata
    assert Access("[::1]:8080", token_file=token).metadata
    assert Access("gpu-box:8080", token_file=token, tls=robot_tls(certs)).metadata


# TLS.


@pytest.fixture
def guarded(tiny: Path, certs: Path) -> Iterator[PolicyServer]:
    """A server that wants certificates."""
    with serving(tiny, wait=False, tls=server_tls(certs, client_ca=certs)) as server:
        yield server


def test_a_certificate_lets_in(guarded: PolicyServer, policy: Policy, certs: Path) -> None:
    assert describe(Access(guarded.address, tls=robot_tls(certs))).policies == (policy,)


def test_a_robot_without_a_certificate_is_told_so(guarded: PolicyServer, certs: Path) -> None:
    said = refused(Access(guarded.address, tls=robot_tls(certs, cert=False)))
    assert said.endswith(": it wants a certificate from this robot (tls.cert, tls.key)")


def test_a_certificate_of_a_stranger_is_told_so(guarded: PolicyServer, certs: Path, strangers: Path) -> None:
    said = refused(Access(guarded.address, tls=robot_tls(strangers, ca=certs)))
    assert said.endswith(": it does not know who signed the certificate in tls.cert")


def test_plain_text_to_a_tls_port_is_told_so(guarded: PolicyServer) -> None:
    assert refused(Access(guarded.address)).endswith(": it speaks TLS, and this robot does not: set tls.ca")


def test_tls_to_a_plain_port_is_told_so(tiny: Path, certs: Path) -> None:
    with serving(tiny, wait=False) as server:
        said = refused(Access(server.address, tls=robot_tls(certs)))
    assert said.endswith(": it does not speak TLS, and this robot does (tls.ca)")


def test_a_server_of_another_ca_is_not_believed(guarded: PolicyServer, certs: Path, strangers: Path) -> None:
    said = refused(Access(guarded.address, tls=robot_tls(certs, ca=strangers)))
    assert said.endswith(f": its certificate is not signed by {strangers / 'ca.crt'} (tls.ca)")


def test_an_expired_server_is_not_believed(tiny: Path, expired: Path, log: Log) -> None:
    with serving(tiny, wait=False, tls=server_tls(expired)) as server:
        said = refused(Access(server.address, tls=robot_tls(expired, cert=False)))
        assert said.endswith(": its certificate has expired")
        log.wait_for("server.crt expired on", "no robot will connect")


def test_an_expired_robot_is_told_so(tiny: Path, certs: Path, expired: Path) -> None:
    with serving(tiny, wait=False, tls=server_tls(certs, client_ca=expired)) as server:
        assert refused(Access(server.address, tls=robot_tls(expired, ca=certs))).endswith(
            ": the certificate in tls.cert has expired"
        )


def test_the_servers_name_is_checked(tiny: Path, policy: Policy, elsewhere: Path) -> None:
    with serving(tiny, wait=False, tls=server_tls(elsewhere)) as server:
        said = refused(Access(server.address, tls=robot_tls(elsewhere)))
        assert ": its certificate is not for 127.0.0.1: " in said
        named = Access(server.address, tls=robot_tls(elsewhere, server_name="gpu-box"))
        assert describe(named).policies == (policy,)


def test_tls_passes_through_a_tcp_proxy(guarded: PolicyServer, policy: Policy, certs: Path) -> None:
    """End to end: a tunnel or a TCP proxy sees neither certificates' keys nor tokens."""
    with Proxy(guarded.address) as proxy:
        assert describe(Access(proxy.address, tls=robot_tls(certs))).policies == (policy,)
        assert refused(Access(proxy.address, tls=robot_tls(certs, cert=False))).endswith("(tls.cert, tls.key)")


def test_nobody_there_may_pass(certs: Path) -> None:
    for access in (Access("127.0.0.1:1", tls=robot_tls(certs)), Access("unix:/nowhere/policy.sock")):
        error = diagnosis.explain(access)
        assert isinstance(error, StreamError)
        assert str(error).startswith(f"{access.address} is not available: ")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_unix_socket_of_somebody_else_is_told_so(tmp_path: Path) -> None:
    access = Access(f"unix:{tmp_path}/policy.sock")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{tmp_path}/policy.sock")
        listening.listen()
        os.seteuid(NOBODY)
        try:
            error = diagnosis.explain(access)
        finally:
            os.seteuid(0)
    assert isinstance(error, AccessError)
    assert "may not be used by this user" in str(error)


# What is exposed, and how.

BOTH = ["TLS (tls.cert, tls.key)", "client certificates (tls.client_ca) or a token (token_file)"]


@pytest.mark.parametrize(
    ("tls", "client_ca", "token", "lacks"),
    [
        (False, False, False, BOTH),
        (True, False, False, BOTH[1:]),
        (False, False, True, BOTH[:1]),
        (True, True, False, []),
        (True, False, True, []),
    ],
)
def test_beyond_loopback_it_takes_tls_and_a_proof_or_insecure(
    tiny: Path,
    certs: Path,
    token_file: Tokens,
    log: Log,
    tls: bool,
    client_ca: bool,
    token: bool,
    lacks: list[str],
) -> None:
    settings: dict[str, Any] = {"listen": "0.0.0.0:0", "providers": "cpu"}
    if tls:
        settings["tls"] = server_tls(certs, client_ca=certs if client_ca else None)
    if token:
        settings["token_file"] = token_file()
    loaded = [bundle.load(tiny)]
    if not lacks:
        with PolicyServer(ServerConfig(**settings), loaded):
            assert not [line for line in log.lines if "--insecure" in line]
        return
    with pytest.raises(ConfigError, match=r"listen: 0.0.0.0:0 can be reached from other machines, and lacks") as error:
        PolicyServer(ServerConfig(**settings), loaded)
    assert all(each in str(error.value) for each in lacks)
    for _ in range(2):
        log.lines.clear()
        with PolicyServer(ServerConfig(**settings, insecure=True), loaded):
            assert log.wait_for("--insecure").endswith(f"and lacks {' and '.join(lacks)} (--insecure)")


def test_a_robot_goes_beyond_loopback_only_over_tls_or_when_told_so(certs: Path) -> None:
    with pytest.raises(ConfigError, match=r"server_address: 192.0.2.1:8080 is beyond loopback, and there is no tls.ca"):
        Access("192.0.2.1:8080")
    Access("192.0.2.1:8080", insecure=True).open().close()
    Access("192.0.2.1:8080", tls=robot_tls(certs)).open().close()
    Access("[::1]:8080").open().close()


@pytest.mark.parametrize("address", ["example", "127.0.0.1:", "127.0.0.1:99999", ":80", "[::1]:port"])
def test_a_wrong_address_is_named(address: str) -> None:
    with pytest.raises(ConfigError, match="server_address"):
        Access(address, insecure=True)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"cert": Path("a")}, "tls.key: is missing"),
        ({"key": Path("a")}, "tls.cert: is missing"),
        ({"client_ca": Path("a")}, "tls.cert: is missing"),
    ],
)
def test_half_a_server_configuration_is_refused(settings: dict[str, Path], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        server_config.TlsConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ca": Path("a"), "cert": Path("a")}, "tls.key: is missing"),
        ({"cert": Path("a"), "key": Path("a")}, "tls.ca: is missing"),
        ({"server_name": "gpu-box"}, "tls.ca: is missing"),
    ],
)
def test_half_a_robots_configuration_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        TlsConfig(**settings)


def test_a_unix_socket_has_no_tls(certs: Path) -> None:
    with pytest.raises(ConfigError, match=r"tls\.ca: unix:/run/policy.sock is a Unix socket"):
        Access("unix:/run/policy.sock", tls=robot_tls(certs))
    with pytest.raises(ConfigError, match=r"tls\.cert: a Unix socket has no TLS"):
        ServerConfig(listen="unix:/run/policy.sock", tls=server_tls(certs))
