"""gRPC <-> sessions, and nothing else.

Each stream holds one worker, which drains the session's outbox, and has a reader thread, which feeds the session. The
reader decides how the stream ends and says so through the outbox: as agreed, or with a ProtocolError or a `Fault`.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError

from edge_runtime.errors import ProtocolError
from edge_runtime.wire import codec
from edge_runtime.wire import policy_pb2 as pb
from edge_runtime.wire.handshake import extra_cameras
from edge_runtime.wire.messages import PROTOCOL_VERSION, Chunk, Failure, Policy, ServerDescription, Skipped, Welcome
from policy_server.cleaning import match_keys
from policy_server.outbox import Outbox, Outgoing
from policy_server.scheduler import Scheduler
from policy_server.session import Session

log = logging.getLogger(__name__)

SERVICE = pb.DESCRIPTOR.services_by_name["PolicyService"].full_name
HANDSHAKE_S = 10.0  # from the stream's start to its Hello
SPARE_WORKERS = 8  # for describe and health, and to refuse a session at once


class Fault(Exception):
    """A stream is to end with this status."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Model:
    """A policy on offer and the scheduler that runs it."""

    policy: Policy
    scheduler: Scheduler


class PolicyService:
    """Serves `models`, by name; the first is the default. At most `max_sessions` streams at once."""

    def __init__(self, models: Mapping[str, Model], *, max_sessions: int, version: str) -> None:
        self._models = models
        self._max_sessions = max_sessions
        self._version = version
        self._lock = threading.Lock()
        self._streams: set[Outbox] = set()
        self._stopping = False
        self._last_refusal = ""

    def handler(self) -> grpc.GenericRpcHandler:
        """For `Server.add_generic_rpc_handlers`. Requests stay bytes: what cannot be parsed is answered by us."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Describe": grpc.unary_unary_rpc_method_handler(
                    self.describe, response_serializer=pb.ServerDescription.SerializeToString
                ),
                "Act": grpc.stream_stream_rpc_method_handler(
                    self.act, response_serializer=pb.ServerMessage.SerializeToString
                ),
            },
        )

    def describe(self, request: bytes, context: grpc.ServicerContext) -> pb.ServerDescription:
        for model in self._models.values():
            if not model.scheduler.warm.done():
                context.abort(
                    grpc.StatusCode.UNAVAILABLE, f"{model.policy.name} is warming up ({model.scheduler.progress})"
                )
        policies = tuple(model.policy for model in self._models.values())
        return codec.encode_description(ServerDescription(PROTOCOL_VERSION, self._version, policies))

    def act(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[pb.ServerMessage]:
        def drop() -> None:
            log.warning("%s dropped: it does not read what it is sent", unquote(context.peer()))
            context.cancel()

        outbox = Outbox(on_overflow=drop)
        try:
            self._enter(outbox, context)
            greeted: Future[Session] = Future()
            threading.Thread(
                target=self._read, args=(requests, outbox, greeted, context.peer()), name="reader", daemon=True
            ).start()
            try:
                session = greeted.result(HANDSHAKE_S)
            except TimeoutError:
                raise Fault(grpc.StatusCode.DEADLINE_EXCEEDED, f"no hello within {HANDSHAKE_S:g} s") from None
            yield codec.encode_welcome(Welcome(session.policy))
            try:
                for outgoing in outbox:
                    yield _encode(outgoing)
            finally:
                log.info("%s left (%s)", session.name, session.tally() or "nothing asked")
            if outbox.fault is not None:
                raise outbox.fault
        except ProtocolError as error:
            self._note_refusal(context.peer(), str(error))
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except Fault as fault:
            self._note_refusal(context.peer(), str(fault))
            context.abort(fault.code, str(fault))
        except _Gone:
            return
        finally:
            outbox.close()
            self._leave(outbox)  # before the status goes out: whoever reads it may come back at once

    def stop(self) -> None:
        """End every stream; new ones are refused."""
        with self._lock:
            self._stopping = True
            streams = list(self._streams)
        for outbox in streams:
            outbox.close(_stopping())

    def _enter(self, outbox: Outbox, context: grpc.ServicerContext) -> None:
        with self._lock:
            if self._stopping:
                raise _stopping()
            if len(self._streams) >= self._max_sessions:
                raise Fault(grpc.StatusCode.RESOURCE_EXHAUSTED, f"all {self._max_sessions} sessions are taken")
            self._streams.add(outbox)

        def gone() -> None:
            outbox.close()
            self._leave(outbox)

        if not context.add_callback(gone):
            raise _Gone

    def _note_refusal(self, peer: str, reason: str) -> None:
        """One line for each reason in a row: who is refused tries again several times a second."""
        if reason != self._last_refusal:
            log.warning("%s refused: %s", unquote(peer), reason)
        self._last_refusal = reason

    def _leave(self, outbox: Outbox) -> None:
        with self._lock:
            self._streams.discard(outbox)

    def _read(self, requests: Iterator[bytes], outbox: Outbox, greeted: Future[Session], peer: str) -> None:
        """The reader's thread: until the robot has nothing more to say, says something wrong, or is gone."""
        try:
            try:
                session = self._greet(next(requests), outbox, peer)
            except (StopIteration, grpc.RpcError):
                greeted.set_exception(_Gone())
                return
            except Exception as error:  # raised again by the worker
                greeted.set_exception(error)
                return
            greeted.set_result(session)
            assembler = codec.ObservationAssembler(session.policy)
            for request in requests:
                message = _parse(request)
                if message.WhichOneof("body") == "ping":
                    session.ping(codec.decode_ping(message))
                elif (whole := assembler.feed(message)) is not None:
                    session.feed(*whole)
            session.finish()
        except grpc.RpcError:
            outbox.close()
        except ProtocolError as error:
            outbox.close(error)
        except Exception:
            error_id = secrets.token_hex(4)
            log.exception("%s: reading failed (id %s)", peer, error_id)
            outbox.close(Fault(grpc.StatusCode.INTERNAL, f"the server failed (id {error_id})"))

    def _greet(self, first: bytes, outbox: Outbox, peer: str) -> Session:
        """The session that a Hello asks for. Raises ProtocolError (no Hello), Fault (not to be had)."""
        hello = codec.decode_hello(_parse(first))
        model = self._models.get(hello.model or next(iter(self._models)))
        if model is None:
            offered = ", ".join(self._models)
            raise Fault(grpc.StatusCode.NOT_FOUND, f"model {hello.model!r} is not offered here; offered: [{offered}]")
        try:
            keys = match_keys(hello, model.policy)
        except ProtocolError as error:
            raise Fault(grpc.StatusCode.FAILED_PRECONDITION, str(error)) from error
        if not model.scheduler.warm.done():
            raise Fault(grpc.StatusCode.UNAVAILABLE, f"model {model.policy.name} is still warming up")
        name = f"{hello.robot or 'robot'} at {unquote(peer)}"
        log.info("%s runs %s", name, model.policy.name)
        self._last_refusal = ""
        extra = extra_cameras((camera.name for camera in hello.cameras), model.policy)
        if extra:
            log.warning("%s: cameras [%s] are not used by %s", name, ", ".join(extra), model.policy.name)
        return Session(hello, model.policy, keys, name=name, queue=model.scheduler, outbox=outbox)


class _Gone(Exception):
    """The stream ended before there was a session."""


def _stopping() -> Fault:
    return Fault(grpc.StatusCode.UNAVAILABLE, "the server is stopping")


def _parse(request: bytes) -> pb.ClientMessage:
    try:
        return pb.ClientMessage.FromString(request)
    except DecodeError as error:
        raise ProtocolError("stream: got bytes that are not a message") from error


def _encode(outgoing: Outgoing) -> pb.ServerMessage:
    message = outgoing.message
    if isinstance(message, Chunk):
        encoded = codec.encode_chunk(message)
        encoded.chunk.times.finish = time.monotonic() - outgoing.since_s
        return encoded
    if isinstance(message, Skipped):
        return codec.encode_skipped(message)
    if isinstance(message, Failure):
        return codec.encode_failure(message)
    return codec.encode_pong(message)
