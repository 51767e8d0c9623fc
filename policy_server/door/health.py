"""grpc.health.v1: is the server serving? Checked or watched; a half-sent question holds no worker."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial

import grpc
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from policy_server.door.admission import Admission
from policy_server.door.deadlines import Deadlines
from policy_server.door.peers import Peers

SERVICE: str = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name


class Health:
    """One state for the whole server (the empty name) and for each of `services`; NOT_SERVING at first.

    At most `places` questions at once, watchers included, and half of them from one peer. Each is a stream to us, so
    that the worker that waits for its one message can be given up after `message_s`.
    """

    def __init__(
        self, services: Collection[str], places: int, message_s: float, deadlines: Deadlines, peers: Peers
    ) -> None:
        self._services = {"", *services}
        self._admission = Admission(places, places // 2, peers, "questions about health")
        self._message_s = message_s
        self._deadlines = deadlines
        self._changed = threading.Condition()
        self._serving = False

    def set(self, serving: bool) -> None:
        with self._changed:
            self._serving = serving
            self._changed.notify_all()

    def handler(self) -> grpc.GenericRpcHandler:
        """For `Server.add_generic_rpc_handlers`."""
        methods = {
            name: grpc.stream_stream_rpc_method_handler(
                method, HealthCheckRequest.FromString, HealthCheckResponse.SerializeToString
            )
            for name, method in (("Check", self.check), ("Watch", self.watch))
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def check(
        self, requests: Iterator[HealthCheckRequest], context: grpc.ServicerContext
    ) -> Iterator[HealthCheckResponse]:
        with self._question(requests, context) as service:
            status = self._status(service)
            if status == HealthCheckResponse.SERVICE_UNKNOWN:
                context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
            yield HealthCheckResponse(status=status)

    def watch(
        self, requests: Iterator[HealthCheckRequest], context: grpc.ServicerContext
    ) -> Iterator[HealthCheckResponse]:
        with self._question(requests, context) as service:
            said = None
            context.add_callback(self._wake)
            while True:
                with self._changed:
                    self._changed.wait_for(partial(self._is_news, service, said, context))
                    said = self._status(service)
                if not context.is_active():
                    return
                yield HealthCheckResponse(status=said)

    def _status(self, service: str) -> int:
        if service not in self._services:
            return int(HealthCheckResponse.SERVICE_UNKNOWN)
        return int(HealthCheckResponse.SERVING if self._serving else HealthCheckResponse.NOT_SERVING)

    def _is_news(self, service: str, said: int | None, context: grpc.ServicerContext) -> bool:
        return self._status(service) != said or not context.is_active()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    @contextmanager
    def _question(self, requests: Iterator[HealthCheckRequest], context: grpc.ServicerContext) -> Iterator[str]:
        """The service that is asked about, for as long as the answer takes."""
        with self._admission.place(context):
            self._deadlines.set((self, context), self._message_s, context.cancel)
            try:
                request = next(requests, HealthCheckRequest())
            finally:
                self._deadlines.clear((self, context))
            yield request.service
