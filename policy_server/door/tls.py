"""The server's certificate and whose certificates it takes, from files that can be read again while it serves."""

from __future__ import annotations

import datetime
import logging

import grpc

from edge_runtime.errors import ConfigError
from edge_runtime.program import credentials
from policy_server.config import TlsConfig

log = logging.getLogger(__name__)


class ServerTls:
    """TLS as `config`, whose `cert` is given, describes it."""

    def __init__(self, config: TlsConfig) -> None:
        """Raises ConfigError or AccessError for files that are missing, are something else or do not fit."""
        self._config = config
        self._fresh: grpc.ServerCertificateConfiguration | None = None
        self.credentials: grpc.ServerCredentials = grpc.dynamic_ssl_server_credentials(
            self._read(), self._take, require_client_authentication=config.client_ca is not None
        )

    def reload(self) -> None:
        """Read the files again, for handshakes to come. Raises as the constructor does, and the old ones stay."""
        self._fresh = self._read()

    def _take(self) -> grpc.ServerCertificateConfiguration | None:
        """For gRPC, at each handshake: what changed since it asked last, or None."""
        fresh, self._fresh = self._fresh, None
        return fresh

    def _read(self) -> grpc.ServerCertificateConfiguration:
        config = self._config
        assert config.cert is not None
        assert config.key is not None
        certificate, key = credentials.pair(config.cert, config.key)
        robots = None if config.client_ca is None else credentials.authorities(config.client_ca, "tls.client_ca")
        names, until = _read_certificate(certificate)
        said = "robots must show a certificate" if robots else "robots show no certificate"
        log.info("TLS: certificate of %s until %s; %s", names, until.date(), said)
        if until < datetime.datetime.now(datetime.timezone.utc):
            log.error("tls.cert: %s expired on %s; no robot will connect", config.cert, until.date())
        return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=robots)


def _read_certificate(pem: bytes) -> tuple[str, datetime.datetime]:
    """The hosts that the first certificate in `pem` is for, and until when."""
    from cryptography import x509  # in the extra `server`; 40 ms that only TLS costs

    try:
        certificate = x509.load_pem_x509_certificates(pem)[0]
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        raise ConfigError("tls.cert: names no host (it has no subjectAltName), so no robot would take it") from None
    except ValueError as error:
        raise ConfigError(f"tls.cert: holds a damaged certificate ({error})") from error
    hosts = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    return ", ".join(hosts), certificate.not_valid_after_utc
