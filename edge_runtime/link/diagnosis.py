"""Why there is no connection: gRPC says that it failed and little more, so it is tried once more by hand."""

from __future__ import annotations

import socket
import ssl
from datetime import datetime, timezone

from edge_runtime.errors import AccessError, StreamError
from edge_runtime.link.channel import Access
from edge_runtime.program import credentials

TRY_S = 0.5  # for each step

_SPEAKS_TLS = "it speaks TLS, and this robot does not: set tls.ca"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # and empty SETTINGS: RFC 9113, 3.4
_FRAMES = (4, 7)  # SETTINGS and GOAWAY: what an HTTP/2 server may begin with

# What OpenSSL finds wrong with the server's certificate (x509_vfy.h), as the user can act on it.
_UNVERIFIED = {
    9: "its certificate is not valid yet: is the clock right on both machines?",
    10: "its certificate has expired",
    18: "its certificate is not signed by {ca} (tls.ca)",
    19: "its certificate is not signed by {ca} (tls.ca)",
    20: "its certificate is not signed by {ca} (tls.ca)",
    62: "its certificate is not for {name}: connect by a name that it holds, or set tls.server_name",
    64: "its certificate is not for {name}: connect by a name that it holds, or set tls.server_name",
}
# What a server says of ours, by words in its alert.
_ALERTS = {
    "CERTIFICATE_REQUIRED": "it wants a certificate from this robot (tls.cert, tls.key)",
    "HANDSHAKE_FAILURE": "it wants a certificate from this robot (tls.cert, tls.key)",  # TLS 1.2
    "CERTIFICATE_EXPIRED": "the certificate in tls.cert has expired",
    "UNKNOWN_CA": "it does not know who signed the certificate in tls.cert",
    "CERTIFICATE": "it does not take the certificate in tls.cert",
}


def explain(access: Access) -> AccessError | StreamError:
    """Why `access` leads nowhere: AccessError where trying again is of no use, StreamError where it may be.

    Takes at most `TRY_S` for each step: to connect, to shake hands, to hear the first byte.
    """
    try:
        with _connect(access) as plain:
            refused = None
            if access.host:
                refused = _try_without_tls(plain) if access.tls.ca is None else _try_with_tls(plain, access)
        if refused is not None:
            return AccessError(f"{access.address} refused: {refused}")
        if access.tls.ca is not None:
            return StreamError(f"{access.address} does not answer")
        with _connect(access) as plain:
            return StreamError(f"{access.address} {_what_it_speaks(plain)}")
    except TimeoutError:
        return StreamError(f"{access.address} does not answer")
    except OSError as error:
        if isinstance(error, PermissionError) and not access.host:
            return AccessError(f"{access.address} may not be used by this user (its mode or its group)")
        why = str(error.strerror or error).lower()
        return StreamError(f"{access.address} is not available: {why}")


def _connect(access: Access) -> socket.socket:
    if access.host:
        return socket.create_connection((access.host, access.port), TRY_S)
    plain = socket.socket(socket.AF_UNIX)
    try:
        plain.settimeout(TRY_S)
        plain.connect(access.address.removeprefix("unix:"))
    except OSError:
        plain.close()
        raise
    return plain


def _try_without_tls(plain: socket.socket) -> str | None:
    """We speak no TLS: does the server? Nothing is checked, and nothing is said."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with context.wrap_socket(plain):
            return _SPEAKS_TLS
    except ssl.SSLError as error:
        return _SPEAKS_TLS if "ALERT" in (error.reason or "") else None


def _what_it_speaks(plain: socket.socket) -> str:
    """What comes in answer to the first words of HTTP/2, which tells what kind of server is there."""
    plain.sendall(_PREFACE)
    said = plain.recv(16)
    if not said:
        return "closes the connection"
    if said.startswith((b"HTTP/", b"<")):  # Python's own server, so the virtual arm's, answers by the page alone
        return "is a web server, not a policy server"
    if len(said) < 4 or said[3] in _FRAMES:
        return "does not answer"  # in HTTP/2, then: it is busy, or still starting
    return "is not a policy server: it does not speak HTTP/2"


def _try_with_tls(plain: socket.socket, access: Access) -> str | None:
    """What is wrong with the server's certificate, or with ours in its eyes."""
    try:
        with _context(access).wrap_socket(plain, server_hostname=access.server_name) as secured:
            return _hear(secured, access)
    except ssl.SSLCertVerificationError as error:
        known = _UNVERIFIED.get(error.verify_code, f"its certificate does not hold: {error.verify_message}")
        return known.format(ca=access.tls.ca, name=access.server_name)
    except ssl.SSLEOFError:  # closed without a word, as a server with too many connections does
        return None
    except ssl.SSLError as error:
        said = error.reason or ""
        if "ALERT" in said:
            return next((sentence for word, sentence in _ALERTS.items() if word in said), f"it said {said}")
        return "it does not speak TLS, and this robot does (tls.ca)"


def _hear(secured: ssl.SSLSocket, access: Access) -> str | None:
    """In TLS 1.3 the server judges our certificate once we are done: next comes HTTP/2, an alert, or the end."""
    try:
        if secured.recv(1):
            return None
    except (ssl.SSLEOFError, ConnectionResetError):
        pass
    if access.files.cert is None:
        return _ALERTS["CERTIFICATE_REQUIRED"]
    if credentials.expires(access.files.cert) < datetime.now(timezone.utc):
        return _ALERTS["CERTIFICATE_EXPIRED"]
    return _ALERTS["UNKNOWN_CA"]


def _context(access: Access) -> ssl.SSLContext:
    files = access.files
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(cadata=(files.ca or b"").decode("ascii", "replace"))
    if access.tls.cert is not None:
        context.load_cert_chain(access.tls.cert, access.tls.key, password=lambda: "")
    return context
