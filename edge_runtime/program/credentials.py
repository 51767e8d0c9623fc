"""Tokens, keys and certificates in files: who may read them, and what must be in them.

Each function takes the `setting` that named the file, for the sentence of its error: ConfigError when the file is
missing or holds something else, AccessError when it may not be read, or when others may read what is secret.
"""

from __future__ import annotations

import base64
import os
import re
import ssl
import stat
from datetime import datetime, timezone
from pathlib import Path

from edge_runtime.errors import AccessError, ConfigError
from edge_runtime.program import files

_MOST_BYTES = 1 << 20
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{16,512}={0,2}")  # the alphabet is that of RFC 6750
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)
_TIME = rb"(?:\x17\x0d(\d{12})|\x18\x0f(\d{14}))Z"  # UTCTime or GeneralizedTime, in DER
_WORLD = stat.S_IRWXO
_EVERYBODY_ELSE = stat.S_IRWXG | stat.S_IRWXO


def tokens(path: Path, setting: str) -> tuple[str, ...]:
    """The bearer tokens in `path`, one a line; only its owner may read it."""
    lines = [line.strip() for line in _read(path, setting, _EVERYBODY_ELSE).decode("utf-8", "replace").splitlines()]
    found = tuple(line for line in lines if line)
    if not found or not all(_TOKEN.fullmatch(token) for token in found):  # which one is not said: it may be a secret
        raise ConfigError(f"{setting}: {path} does not hold tokens of 16 to 512 letters and digits, one a line")
    return found


def pair(cert: Path, key: Path) -> tuple[bytes, bytes]:
    """The certificate in `tls.cert` and the private key in `tls.key`, in PEM, which belong together.

    A group may have the key, the world may not. gRPC would fail each handshake with a wrong pair without a word.
    """
    certificate, secret = _pem(cert, "tls.cert", "CERTIFICATE", 0), _pem(key, "tls.key", "PRIVATE KEY", _WORLD)
    try:
        # Without a password it would ask for one on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=lambda: "")
    except (OSError, ValueError) as error:
        raise ConfigError(f"tls.key: {key} is not the unencrypted key of {cert} ({_reason(error)})") from error
    return certificate, secret


def authorities(path: Path, setting: str) -> bytes:
    """Certificates of those who sign others', in PEM."""
    pem = _pem(path, setting, "CERTIFICATE", 0)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem.decode("ascii", "replace"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{setting}: {path} holds a damaged certificate ({_reason(error)})") from error
    return pem


def expires(pem: bytes) -> datetime:
    """When the first certificate in `pem` ends: the second of the two times in its Validity (RFC 5280, 4.1.2.5)."""
    first = _CERTIFICATE.search(pem)
    try:
        found = re.search(_TIME + _TIME, base64.b64decode(first[1])) if first else None
        if found is None:
            raise ConfigError("certificate: has no end")
        short, whole = found.group(3, 4)
        pattern = "%Y%m%d%H%M%S" if whole else "%y%m%d%H%M%S"
        return datetime.strptime((whole or short).decode(), pattern).replace(tzinfo=timezone.utc)
    except ValueError as error:
        raise ConfigError(f"certificate: is damaged ({_reason(error)})") from error


def _reason(error: Exception) -> str:
    """OpenSSL's own words, where there are any."""
    return getattr(error, "reason", None) or str(error).partition("\n")[0] or type(error).__name__


def _pem(path: Path, setting: str, label: str, forbidden: int) -> bytes:
    data = _read(path, setting, forbidden)
    if f"{label}-----".encode() not in data:
        raise ConfigError(f"{setting}: {path} holds no {label.lower()} in PEM")
    return data


def _read(path: Path, setting: str, forbidden: int) -> bytes:
    """What is in `path`, unless its mode has a bit of `forbidden`; it is the opened file that is judged."""
    try:
        with files.open_regular(path) as file:
            info = os.fstat(file.fileno())
            if info.st_size > _MOST_BYTES:
                raise ConfigError(f"{setting}: {path} is not a file of at most {_MOST_BYTES} bytes")
            if forbidden and (info.st_mode & forbidden or info.st_uid not in (0, os.geteuid())):
                raise AccessError(
                    f"{setting}: {path} is user {info.st_uid}'s with mode {stat.S_IMODE(info.st_mode):04o}, and others "
                    f"could read or change it: chown and chmod 600 {path}"
                )
            return file.read(_MOST_BYTES)
    except PermissionError as error:
        raise AccessError(f"{setting}: {path} may not be read by user {os.geteuid()}") from error
    except OSError as error:
        raise ConfigError(f"{setting}: cannot read {path}: {(error.strerror or str(error)).lower()}") from error
