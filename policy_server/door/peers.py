"""Who a caller is: the name that it proved, and the address it comes from."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import unquote

import grpc

from edge_runtime.errors import ConfigError
from policy_server.door.tokens import Tokens

_IPV6_HOME = 64  # bits: a peer with one IPv6 address has the whole network

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Peers:
    """Tells callers apart. Those behind one of `trusted_proxies` have no address of their own."""

    def __init__(self, trusted_proxies: Sequence[str] = (), tokens: Tokens | None = None) -> None:
        """Raises ConfigError for a proxy that is neither an address nor a network."""
        self._trusted = networks(trusted_proxies)
        self._tokens = tokens

    def home(self, peer: str) -> str:
        """The address in gRPC's `peer`, of IPv6 its /64; empty for this machine and for trusted proxies."""
        kind, _, rest = unquote(peer).partition(":")
        if kind not in ("ipv4", "ipv6"):
            return ""
        address = ipaddress.ip_address(rest.rpartition(":")[0].strip("[]").partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address):
            address = address.ipv4_mapped or address
        if address.is_loopback or any(address in network for network in self._trusted):
            return ""
        if isinstance(address, ipaddress.IPv6Address):
            return str(ipaddress.ip_network((address, _IPV6_HOME), strict=False))
        return str(address)

    def share(self, context: grpc.ServicerContext) -> tuple[str, ...]:
        """Whose share of the server a call takes: the name of its token or certificate, then its address."""
        name = self._tokens.name(context) if self._tokens is not None else ""
        common = context.auth_context().get("x509_common_name", [])
        if common:  # only of certificates that were checked
            name = name or f"certificate {common[0].decode(errors='replace')}"
        return self.share_of(context.peer(), name)

    def share_of(self, peer: str, name: str) -> tuple[str, ...]:
        """The same, for a `peer` that proved to be called `name`; empty for one that proved nothing."""
        home = self.home(peer)
        return tuple(part for part in (name, home and f"address {home}") if part)


def networks(names: Sequence[str]) -> tuple[Network, ...]:
    found = []
    for name in names:
        try:
            found.append(ipaddress.ip_network(name, strict=False))
        except ValueError as error:
            raise ConfigError(f"trusted_proxies: {name!r} is neither an address nor a network") from error
    return tuple(found)
