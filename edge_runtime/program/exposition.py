"""Numbers for Prometheus, at /metrics on a port of this machine only."""

from __future__ import annotations

import logging
import os
from types import TracebackType

from edge_runtime.errors import ConfigError, OutputError

try:
    from prometheus_client import start_http_server
    from prometheus_client.registry import Collector, CollectorRegistry
except ImportError as error:
    raise ConfigError(
        "metrics_port: prometheus-client is not installed; pip install 'edge-runtime[metrics]'"
    ) from error

log = logging.getLogger(__name__)

HOST = "127.0.0.1"


class Exposition:
    """Serves what `collectors` know, from entering to leaving; `port` is the one that was got."""

    def __init__(self, port: int, *collectors: Collector) -> None:
        self.port = port
        self._registry = CollectorRegistry()
        for collector in collectors:
            self._registry.register(collector)

    def __enter__(self) -> Exposition:
        """Raises OutputError when the port cannot be had."""
        try:
            self._server, self._thread = start_http_server(self.port, HOST, self._registry)
        except OSError as error:
            reason = os.strerror(error.errno or 0).lower()
            raise OutputError(f"metrics_port: {HOST}:{self.port}: {reason}") from error
        self.port = self._server.server_port
        log.info("metrics on http://%s:%d/metrics", HOST, self.port)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
