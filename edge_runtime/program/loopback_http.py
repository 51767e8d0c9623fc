"""Who may ask an HTTP server of ours on loopback: programs and its own page, not pages of other sites in a browser."""

from __future__ import annotations

import re

_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d+)?", re.IGNORECASE)  # any port: it may be forwarded


def refusal(host: str, origin: str | None) -> str:
    """Why a request with these headers is to be answered 403; empty for one that may be answered.

    Host tells a page whose name was made to mean this machine (DNS rebinding), Origin every other.
    """
    if _HOST.fullmatch(host) is None:
        return f"Host: {host!r} is not 127.0.0.1 or localhost"
    if origin is not None and origin.lower() != f"http://{host}".lower():
        return f"Origin: {origin!r} is not http://{host}"
    return ""
