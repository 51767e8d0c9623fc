"""Who is let in: what a server needs before other machines may reach it, and how it tells its peers apart."""

from __future__ import annotations

import logging

import grpc

from edge_runtime.errors import ConfigError, EdgeRuntimeError
from policy_server.config import ServerConfig
from policy_server.door.address import Address
from policy_server.door.peers import Peers
from policy_server.door.refusals import Refusals
from policy_server.door.tls import ServerTls
from policy_server.door.tokens import Tokens

log = logging.getLogger(__name__)


class Access:
    """TLS and tokens as configured. `lacks` names what a server that can be reached from elsewhere should have.

    `peers` tells callers apart.
    """

    def __init__(self, config: ServerConfig, listen: Address, refused: Refusals) -> None:
        """Raises ConfigError beyond loopback without TLS or without a proof of who it is, unless `insecure`."""
        self.lacks = [] if listen.is_local else _missing(config)
        if self.lacks and not config.insecure:
            raise ConfigError(
                f"listen: {listen} can be reached from other machines, and lacks {' and '.join(self.lacks)}; "
                "--insecure=true does without"
            )
        self._tls = ServerTls(config.tls) if config.tls.cert is not None else None
        self.tokens = Tokens(config.token_file, refused) if config.token_file is not None else None
        self.peers = Peers(config.trusted_proxies, self.tokens)

    @property
    def credentials(self) -> grpc.ServerCredentials | None:
        return self._tls.credentials if self._tls is not None else None

    @property
    def interceptors(self) -> list[grpc.ServerInterceptor]:
        """In the order in which they see a call."""
        return [] if self.tokens is None else [self.tokens]

    def reload(self) -> None:
        """Read every file again; one that is wrong is logged, and what it held before stays."""
        for part in (self._tls, self.tokens):
            if part is not None:
                try:
                    part.reload()
                except EdgeRuntimeError as error:
                    log.error("not reloaded, what was read before stays: %s", error)


def _missing(config: ServerConfig) -> list[str]:
    missing = []
    if config.tls.cert is None:
        missing.append("TLS (tls.cert, tls.key)")
    if config.tls.client_ca is None and config.token_file is None:
        missing.append("client certificates (tls.client_ca) or a token (token_file)")
    return missing
