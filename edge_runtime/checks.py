"""What a configuration class checks of its own values: ranges, addresses and names."""

from __future__ import annotations

import ipaddress
import math
import os
import re
import urllib.parse
from collections.abc import Sequence

from edge_runtime.errors import ConfigError
from edge_runtime.schema import shown

FOREVER_S = 1_000_000_000  # 31 years; a thread can wait for so long, and not for ten times as long
_NAME_BYTES = 128
_SOCKET_BYTES = 107  # sun_path of unix(7)
_PORT = re.compile(r"[0-9]{1,5}")
_HOST = re.compile(r"[\w.-]+")


def check_ranges(config: object, path: str = "", **ranges: tuple[float, float]) -> None:
    """ConfigError for the first field of `config` that is not in its range, ends included; None is in every range."""
    for name, (low, high) in ranges.items():
        value = getattr(config, name)
        if value is not None and not low <= value <= high:
            allowed = f"not in {_number(low)}..{_number(high)}" if high < math.inf else f"less than {_number(low)}"
            raise ConfigError(f"{path and path + '.'}{name}: {_number(value)} is {allowed}")


def check_address(text: str, path: str, schemes: Sequence[str] = ("http", "https")) -> None:
    """ConfigError unless `text` is the URL of a server."""
    try:
        parts = urllib.parse.urlsplit(text)
        known = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0  # .port raises for no number
        (parts.hostname or "").encode("idna")  # raises for what no name server can be asked
    except ValueError:
        known = False
    if not known or not text.isascii() or not text.isprintable() or " " in text:  # HTTP would be sent none of these
        raise ConfigError(f"{path}: {shown(text)} is not an address such as {schemes[0]}://127.0.0.1:8090/page")


def split_address(text: str, path: str, first_port: int = 1) -> tuple[str, int]:
    """Host, without brackets, and port of HOST:PORT; of unix:/path an empty host and 0. Raises ConfigError."""
    if text.startswith("unix:"):
        file = text.removeprefix("unix:")
        if not file.startswith("/") or len(os.fsencode(file)) > _SOCKET_BYTES:
            raise ConfigError(f"{path}: {shown(text)} is not unix:/PATH of at most {_SOCKET_BYTES} bytes")
        return "", 0
    host, _, port = text.rpartition(":")
    if not _is_host(host) or not _PORT.fullmatch(port) or not first_port <= int(port) < 65536:
        raise ConfigError(f"{path}: {shown(text)} is not HOST:PORT or unix:/path")
    return host.strip("[]"), int(port)


def _is_host(text: str) -> bool:
    """A name, an IPv4 address, or an IPv6 address in brackets."""
    try:
        if text.startswith("[") and text.endswith("]"):
            ipaddress.IPv6Address(text[1:-1])
            return True
        text.encode("idna")  # raises for labels that are empty or too long
    except ValueError:
        return False
    return _HOST.fullmatch(text) is not None


def check_file_name(name: str, path: str, example: str) -> None:
    """ConfigError unless a file can be named for `name`, and a server be told it."""
    if not name or "/" in name or not name.isprintable() or len(name.encode()) > _NAME_BYTES:
        raise ConfigError(
            f"{path}: {shown(name)} is not the name of a calibration file (at most {_NAME_BYTES} bytes, without /), "
            f"such as {example}"
        )


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.12g}"
