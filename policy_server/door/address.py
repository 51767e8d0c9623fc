"""Where a server listens: HOST:PORT or unix:/path, who can reach it, and how it is bound."""

from __future__ import annotations

import errno
import ipaddress
import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

import grpc

from edge_runtime.errors import AccessError, ConfigError, OutputError
from edge_runtime.program import output
from edge_runtime.program.schema import split_address


@dataclass(frozen=True)
class Address:
    """Either `host` and `port`, or the `path` of a Unix socket."""

    host: str = ""
    port: int = 0
    path: Path | None = None
    setting: str = "listen"

    @classmethod
    def parse(cls, text: str, setting: str = "listen") -> Address:
        """Raises ConfigError when `text` is not an address, or a name that does not resolve."""
        host, port = split_address(text, setting, first_port=0)
        if not host:
            return cls(path=Path(text.removeprefix("unix:")), setting=setting)
        return cls(host=_resolve(host, setting), port=port, setting=setting)

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Only this machine can reach it."""
        return self.path is not None or ipaddress.ip_address(self.host).is_loopback

    def bind(self, server: grpc.Server, credentials: grpc.ServerCredentials | None = None, group: str = "") -> Address:
        """Make `server` listen here; the address with the port that was got. Raises OutputError.

        With `credentials` it speaks TLS; the members of `group` may use a Unix socket too.
        """
        if self.path is not None:
            self._bind_path(server, self.path)
            if group:
                _share(self.path, group)
            return self
        self._probe()
        try:
            if credentials is not None:
                return Address(self.host, server.add_secure_port(str(self), credentials))
            return Address(self.host, server.add_insecure_port(str(self)))
        except RuntimeError as error:
            raise OutputError(f"{self.setting}: {self}: cannot be bound") from error

    def _probe(self) -> None:
        """Bind once ourselves: gRPC says that it failed, but not why."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self.host, self.port))
            except OSError as error:
                why = os.strerror(error.errno or errno.EINVAL).lower()
                raise OutputError(f"{self.setting}: {self}: {why}") from error

    def _bind_path(self, server: grpc.Server, path: Path) -> None:
        refuse_taken(path, f"listen: {self}")  # gRPC removes whatever lies there, a living server's socket included
        output.check_folder(path.parent, "listen")
        mask = os.umask(0o177)  # mode 0600 from the start, not after a moment
        try:
            server.add_insecure_port(str(self))
        except RuntimeError as error:
            raise OutputError(f"listen: {self}: cannot be created") from error
        finally:
            os.umask(mask)


def refuse_taken(path: Path, what: str) -> None:
    """Raises OutputError when somebody listens at `path`, or what lies there is not a socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            if path.exists() and not path.is_socket():
                raise OutputError(f"{what}: is there and is not a socket") from None
            return
    raise OutputError(f"{what}: address already in use")


def _share(path: Path, group: str) -> None:
    """Let `group` use the socket at `path`."""
    try:
        shutil.chown(path, group=group)
        path.chmod(0o660)
    except LookupError as error:
        raise ConfigError(f"socket_group: there is no group {group!r}") from error
    except OSError as error:
        raise AccessError(f"socket_group: {path} cannot be given to {group!r}: {error.strerror}") from error


def _resolve(host: str, setting: str) -> str:
    """The one IP address that `host` means, IPv4 before IPv6: what is asked for is what is bound."""
    try:
        found = sorted(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM), key=lambda info: info[0])
    except OSError as error:
        raise ConfigError(f"{setting}: {host!r} is not an address and does not resolve") from error
    return str(found[0][4][0])
