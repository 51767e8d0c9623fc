"""Numbers for Prometheus, at /metrics on a port of this machine only."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from types import TracebackType
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from edge_runtime.errors import OutputError
from edge_runtime.program import extras
from edge_runtime.program.loopback_http import refusal

try:
    from prometheus_client import make_wsgi_app
    from prometheus_client.registry import Collector, CollectorRegistry
except ImportError as error:
    raise extras.missing("prometheus_client", what="metrics_port") from error

log = logging.getLogger(__name__)

HOST = "127.0.0.1"


class Exposition:
    """Serves what `collectors` know, from entering to leaving; `port` is the one that was got."""

    def __init__(self, port: int, *collectors: Collector) -> None:
        self.port = port
        self._registry = CollectorRegistry()
        for collector in collectors:
            self._registry.register(collector)
        self._app = make_wsgi_app(self._registry)

    def __enter__(self) -> Exposition:
        """Raises OutputError when the port cannot be had."""
        try:
            self._server = make_server(HOST, self.port, self._answer, _Server, _Quiet)
        except OSError as error:
            reason = os.strerror(error.errno or 0).lower()
            raise OutputError(f"metrics_port: {HOST}:{self.port}: {reason}") from error
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()
        log.info("metrics on http://%s:%d/metrics", HOST, self.port)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, request: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        reason = refusal(request.get("HTTP_HOST", ""), request.get("HTTP_ORIGIN"))
        if not reason:
            answer: Iterable[bytes] = self._app(request, start)
            return answer
        start("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
        return [reason.encode()]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    timeout = 10.0  # of a peer that says nothing

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing: requests come every few seconds."""
