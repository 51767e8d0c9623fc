"""`policy-server make-certs DIR`: a private CA with a server's and a robot's certificate, for people without one."""

from __future__ import annotations

import datetime
import ipaddress
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from edge_runtime.errors import ConfigError, OutputError
from edge_runtime.program import flags, output
from edge_runtime.program.schema import Range, check_fields

_EARLIER = datetime.timedelta(hours=1)  # a robot's clock may be behind ours
_SIGNS = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # certificates and their revocation
_SPEAKS = x509.KeyUsage(True, False, False, False, False, False, False, False, False)  # for itself


@dataclass
class MakeCertsConfig:
    """`policy-server make-certs DIR`: write ca, server and robot, each a .crt and a .key of mode 0600, into DIR."""

    dir: Path  # made if it is not there; nothing in it is overwritten
    hosts: list[str] = field(default_factory=list)  # names and addresses of the server, besides those found here
    days: Annotated[int, Range(1, 36500)] = 3650  # until they expire
    debug: bool = False  # tracebacks

    def __post_init__(self) -> None:
        check_fields(self)
        for host in self.hosts:
            if not host.isascii() or not host or any(c.isspace() for c in host):
                raise ConfigError(f"hosts: {host!r} is neither a name nor an address")


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def main(argv: list[str]) -> int:
    config = flags.parse(MakeCertsConfig, argv, prog="policy-server make-certs", positional="dir")
    hosts = list(dict.fromkeys([*config.hosts, *own_hosts()]))
    write(config.dir, make(hosts, datetime.timedelta(days=config.days)))
    folder = config.dir
    print(f"the policy server ({', '.join(hosts)}): {folder}/server.crt {folder}/server.key {folder}/ca.crt")
    print(f"each robot: {folder}/ca.crt {folder}/robot.crt {folder}/robot.key")
    print(f"no machine; kept offline, for more certificates: {folder}/ca.key")
    return 0


def own_hosts() -> list[str]:
    """What this machine is called and where it is reached, from itself and from its network."""
    name = socket.gethostname()
    hosts = [name, f"{name}.local", "localhost", "127.0.0.1", "::1"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: the kernel only says from which address it would
            hosts.insert(2, probe.getsockname()[0])
        except OSError:  # no network
            pass
    return hosts


def make(hosts: list[str], lifetime: datetime.timedelta) -> dict[str, Pair]:
    """`ca`, and signed by it `server`, which is any of `hosts`, and `robot`."""
    ca = _pair("edge-runtime CA", lifetime)
    names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    return {
        "ca": ca,
        "server": _pair(hosts[0], lifetime, ca, ExtendedKeyUsageOID.SERVER_AUTH, names),
        "robot": _pair("robot", lifetime, ca, ExtendedKeyUsageOID.CLIENT_AUTH),
    }


def write(folder: Path, pairs: dict[str, Pair]) -> None:
    """Raises OutputError for a file that is there already, before anything is written."""
    contents = {}
    for name, pair in pairs.items():
        contents[folder / f"{name}.crt"] = pair.certificate.public_bytes(serialization.Encoding.PEM)
        contents[folder / f"{name}.key"] = pair.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    for path in contents:
        if path.exists():
            raise OutputError(f"dir: {path} is there already and is not overwritten")
    output.make_folder(folder, "dir")
    try:
        for path, content in contents.items():
            mode = 0o600 if path.suffix == ".key" else 0o644
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(content)
    except OSError as error:
        raise OutputError(f"dir: cannot write {error.filename or folder}: {error.strerror}") from error


def _pair(
    name: str,
    lifetime: datetime.timedelta,
    issuer: Pair | None = None,
    purpose: x509.ObjectIdentifier | None = None,
    *extensions: x509.ExtensionType,
) -> Pair:
    """A certificate for `name` that serves `purpose`, signed by `issuer`; without these a CA that signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    signing_key = issuer.key if issuer else key
    now = datetime.datetime.now(datetime.timezone.utc)
    is_ca = issuer is None
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + lifetime)
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=0 if is_ca else None), critical=True)
        .add_extension(_SIGNS if is_ca else _SPEAKS, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), critical=False)
    )
    if purpose is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return Pair(builder.sign(signing_key, hashes.SHA256()), key)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
