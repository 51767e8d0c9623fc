"""A bound on sending: a call whose peer takes nothing (an HTTP/2 window of 0) would hold its worker for ever."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import grpc

from policy_server.door.deadlines import Deadlines
from policy_server.door.refusals import Refusals


class BoundedSending(grpc.ServerInterceptor):  # type: ignore[misc]
    """Cancels each call in which one message lies for `seconds` without being taken; tells `refused` about its peer.

    Every method of this server is a stream to gRPC, whose next message is asked for once there is room for the last.
    """

    def __init__(self, deadlines: Deadlines, seconds: float, refused: Refusals) -> None:
        self._deadlines = deadlines
        self._seconds = seconds
        self._refused = refused

    def intercept_service(self, continuation: Callable[[grpc.HandlerCallDetails], Any], details: Any) -> Any:
        handler = continuation(details)
        if handler is None:
            return None

        def bounded(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            def drop() -> None:
                self._refused(context.peer(), "it does not read what it is sent")
                context.cancel()

            key = (self, context)
            with closing(handler.stream_stream(requests, context)) as responses:
                for response in responses:
                    self._deadlines.set(key, self._seconds, drop)
                    try:
                        yield response
                    finally:
                        self._deadlines.clear(key)

        return grpc.stream_stream_rpc_method_handler(bounded, handler.request_deserializer, handler.response_serializer)
