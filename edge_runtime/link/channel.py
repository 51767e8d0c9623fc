"""How a robot reaches its server: at which address, over TLS or not, with which token."""

from __future__ import annotations

import ipaddress
import logging
from dataclasses import dataclass
from pathlib import Path

import grpc

from edge_runtime.config import TlsConfig
from edge_runtime.errors import AccessError, ConfigError
from edge_runtime.program import credentials, direct
from edge_runtime.program.schema import split_address

log = logging.getLogger(__name__)

_OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", 4 * 1024 * 1024),
    ("grpc.use_local_subchannel_pool", 1),  # a fresh channel is a fresh connection, with no old back-off
    ("grpc.enable_retries", 0),
    direct.GRPC,
)


@dataclass(frozen=True)
class Files:
    """What was read: certificates and key in PEM, and the token; empty where none is configured."""

    ca: bytes | None = None
    cert: bytes | None = None
    key: bytes | None = None
    token: str = ""


class Access:
    """HOST:PORT or unix:/path, and what it takes to get in.

    The files are read at once, and again for each new connection: one that can no longer be read is logged, and what
    was in it before goes on.
    """

    def __init__(
        self,
        address: str,
        *,
        tls: TlsConfig | None = None,
        token_file: Path | None = None,
        insecure: bool = False,
    ) -> None:
        """Raises ConfigError for an invalid address, and for what must not go over the network unencrypted.

        Also ConfigError or AccessError for a file: see `credentials`.
        """
        self.address = address
        self.tls = tls or TlsConfig()
        self._token_file = token_file
        self.host, self.port = split_address(address, "server_address")
        _check(self, insecure=insecure, has_token=token_file is not None)
        self.files = self._read()

    @property
    def is_local(self) -> bool:
        """Nothing leaves this machine."""
        return not self.host or is_loopback(self.host)

    @property
    def server_name(self) -> str:
        """The name that must be in the server's certificate."""
        return self.tls.server_name or self.host

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with each call."""
        return (("authorization", f"Bearer {self.files.token}"),) if self.files.token else ()

    def open(self) -> grpc.Channel:
        """A channel of its own, with what is in the files now."""
        try:
            self.files = self._read()
        except (ConfigError, AccessError) as error:
            log.error("going on with what was read before: %s", error)
        if self.tls.ca is None:
            return grpc.insecure_channel(self.address, options=_OPTIONS)
        name = (("grpc.ssl_target_name_override", self.tls.server_name),) if self.tls.server_name else ()
        secret = grpc.ssl_channel_credentials(self.files.ca, self.files.key, self.files.cert)
        return grpc.secure_channel(self.address, secret, options=(*_OPTIONS, *name))

    def _read(self) -> Files:
        tls = self.tls
        ca = None if tls.ca is None else credentials.authorities(tls.ca, "tls.ca")
        token = "" if self._token_file is None else credentials.tokens(self._token_file, "token_file")[0]
        if tls.cert is None or tls.key is None:
            return Files(ca, token=token)
        return Files(ca, *credentials.pair(tls.cert, tls.key), token)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check(access: Access, *, insecure: bool, has_token: bool) -> None:
    """Nothing secret, and unless `insecure` nothing at all, goes over the network unencrypted."""
    if access.tls.ca is not None:
        if not access.host:
            raise ConfigError(f"tls.ca: {access.address} is a Unix socket, which has no TLS")
    elif not access.is_local and has_token:
        raise ConfigError(f"token_file: the token would go to {access.address} unencrypted; tls.ca turns TLS on")
    elif not access.is_local and not insecure:
        raise ConfigError(
            f"server_address: {access.address} is beyond loopback, and there is no tls.ca: images and actions would "
            "go there unencrypted; --insecure=true allows that"
        )
