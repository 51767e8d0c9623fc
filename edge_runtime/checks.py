"""What a configuration class checks of its own values: ranges and addresses."""

from __future__ import annotations

import math
import urllib.parse
from collections.abc import Sequence

from edge_runtime.errors import ConfigError
from edge_runtime.schema import shown


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
    except ValueError:
        known = False
    if not known:
        raise ConfigError(f"{path}: {shown(text)} is not an address such as {schemes[0]}://127.0.0.1:8090/page")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.12g}"
