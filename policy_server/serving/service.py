"""gRPC <-> sessions, and nothing else.

Each stream holds one worker, which drains the session's outbox, and has a reader thread, which feeds the session. The
reader decides how the stream ends and says so through the outbox: as agreed, or with a ProtocolError or a `Fault`.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any
from urllib.parse import unquote

import grpc

from edge_runtime.errors import ProtocolError
from edge_runtime.program.logs import Sparing
from edge_runtime.wire import codec, envelope
from edge_runtime.wire import policy_pb2 as pb
from edge_runtime.wire.fit import extra_cameras
from edge_runtime.wire.messages import (
    PROTOCOL_VERSION,
    Chunk,
    Failure,
    Pace,
    Ping,
    Received,
    Replaced,
    ServerDescription,
    Skipped,
    Welcome,
)
from policy_server.config import LimitsConfig
from policy_server.door.admission import Admission, Fault
from policy_server.door.deadlines import Deadlines
from policy_server.door.peers import Peers
from policy_server.door.refusals import Refusals
from policy_server.door.stream_limits import StreamLimits
from policy_server.serving.fairness import Share
from policy_server.serving.model import Model
from policy_server.serving.model_stats import ModelStats
from policy_server.serving.models import Models
from policy_server.serving.outbox import Outbox, Outgoing
from policy_server.serving.session import Session

log = logging.getLogger(__name__)
log.addFilter(Sparing())  # a stranger can cause its lines

SERVICE = pb.DESCRIPTOR.services_by_name["PolicyService"].full_name
ACKNOWLEDGED_AFTER = 16 * 1024  # bytes: a robot in tiny pieces is not worth an answer to each
DESCRIBE_PLACES = 8  # at once; half of them from one peer


class PolicyService:
    """Serves `models`. `admission` says who may have a session."""

    def __init__(
        self,
        models: Models,
        *,
        admission: Admission,
        peers: Peers,
        limits: LimitsConfig,
        deadlines: Deadlines,
        refused: Refusals,
        version: str,
    ) -> None:
        self._models = models
        self._admission = admission
        self._peers = peers
        self._numbers = itertools.count()  # of sessions
        self._limits = limits
        self._deadlines = deadlines
        self._refused = refused
        self._version = version
        self._asking = Admission(DESCRIBE_PLACES, DESCRIBE_PLACES // 2, peers, "questions about policies")
        self._lock = threading.Lock()
        self._streams: set[Outbox] = set()
        self._stopping = False

    def handler(self) -> grpc.GenericRpcHandler:
        """For `Server.add_generic_rpc_handlers`. Requests stay bytes: what cannot be parsed is answered by us.

        Describe is a stream to us too: a worker would wait for an ordinary call's one message, for ever if need be.
        """
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Describe": grpc.stream_stream_rpc_method_handler(
                    self.describe, response_serializer=pb.ServerDescription.SerializeToString
                ),
                "Act": grpc.stream_stream_rpc_method_handler(
                    self.act, response_serializer=pb.ServerMessage.SerializeToString
                ),
            },
        )

    def describe(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[pb.ServerDescription]:
        for model in self._models:
            if not model.scheduler.warm.done():
                context.abort(grpc.StatusCode.UNAVAILABLE, f"{model.name} is warming up ({model.scheduler.progress})")
        policies = tuple(model.policy for model in self._models)
        with self._asking.place(context):
            yield codec.encode_description(ServerDescription(PROTOCOL_VERSION, self._version, policies))

    def act(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[pb.ServerMessage]:
        def drop() -> None:
            self._refused(context.peer(), "it does not read what it is sent")
            context.cancel()

        outbox = Outbox(self._limits.unread_answers, on_overflow=drop)
        limits = StreamLimits(self._limits, self._deadlines, end=outbox.close)
        try:
            self._enter(outbox, context)
            greeted: Future[tuple[Model, Session]] = Future()
            share = (*self._peers.share(context), next(self._numbers))
            threading.Thread(
                target=self._read,
                args=(requests, outbox, limits, greeted, context.peer(), share),
                name="reader",
                daemon=True,
            ).start()
            handshake_s = self._limits.handshake_s
            try:
                model, session = greeted.result(handshake_s)
            except FutureTimeout:
                raise Fault(grpc.StatusCode.DEADLINE_EXCEEDED, f"no hello within {handshake_s:g} s") from None
            try:
                for outgoing in outbox:
                    yield _encode(outgoing, model.stats)
            finally:
                model.close_session(session)
                log.info("%s left (%s)", session.name, session.tally() or "nothing asked")
            if outbox.fault is not None:
                raise outbox.fault
        except ProtocolError as error:
            self._refused(context.peer(), str(error))
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except Fault as fault:
            self._refused(context.peer(), str(fault))
            context.abort(fault.code, str(fault))
        except _Gone:
            return
        finally:
            outbox.close()
            outbox.fault = None  # raised, it holds this frame and all that it kept
            limits.over()
            self._leave(outbox)  # before the status goes out: a robot that reads it may come back at once

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
            self._admission.enter(outbox, context.peer())
            self._streams.add(outbox)

        def gone() -> None:
            outbox.close()
            self._leave(outbox)

        if not context.add_callback(gone):
            raise _Gone

    def _leave(self, outbox: Outbox) -> None:
        with self._lock:
            self._streams.discard(outbox)
            self._admission.leave(outbox)

    def _read(
        self,
        requests: Iterator[bytes],
        outbox: Outbox,
        limits: StreamLimits,
        greeted: Future[tuple[Model, Session]],
        peer: str,
        share: Share,
    ) -> None:
        """The reader's thread: until the robot has nothing more to say, says something wrong, or is gone."""
        try:
            model, session = self._greet(next(requests), outbox, peer, share)
        except (StopIteration, grpc.RpcError) as error:
            error.__traceback__ = None  # see below
            greeted.set_exception(_Gone())
            return
        except Exception as error:  # raised again by the worker
            greeted.set_exception(error)
            return
        greeted.set_result((model, session))
        try:
            self._listen(requests, session, outbox, limits)
            session.finish()
        except grpc.RpcError as error:
            # gRPC keeps the error in a cycle, and its traceback would keep the session and the pictures in it.
            error.__traceback__ = None
            outbox.close()
        except (ProtocolError, Fault) as error:
            outbox.close(error.with_traceback(None))
        except Exception:
            error_id = secrets.token_hex(4)
            log.exception("%s: reading failed (id %s)", peer, error_id)
            outbox.close(Fault(grpc.StatusCode.INTERNAL, f"the server failed (id {error_id})"))
        finally:
            if outbox.closed:  # maybe before we were done, by a worker that did not wait for us
                model.close_session(session)

    def _listen(self, requests: Iterator[bytes], session: Session, outbox: Outbox, limits: StreamLimits) -> None:
        """Feed the session. Raises ProtocolError or Fault for what may not be said, or not so often."""
        most = envelope.from_robot(session.policy)
        assembler = codec.ObservationAssembler(session.policy, most_bytes=self._limits.observation_bytes)
        limits.heard(asks=False)
        here = told = 0  # bytes of the pictures that are arriving
        for request in requests:
            if outbox.closed:  # what gRPC had received before is of no use to anyone
                return
            message = envelope.parse(pb.ClientMessage, request, most)
            kind = message.WhichOneof("body")
            limits.heard(asks=kind != "piece")
            if kind == "ping":
                session.ping(codec.decode_ping(message))
                continue
            whole = assembler.feed(message)
            if kind == "observation":
                here = told = 0
            here += len(message.piece.data)
            if whole is not None or here - told >= ACKNOWLEDGED_AFTER:
                if here:
                    session.received(message.piece.observation, here)
                told = here
                limits.arriving(assembler.unfinished)  # a slow line has its time again as long as it gets on
            elif kind == "observation":
                limits.arriving(assembler.unfinished)
            if whole is not None:
                session.feed(*whole)

    def _greet(self, first: bytes, outbox: Outbox, peer: str, share: Share) -> tuple[Model, Session]:
        """The session that a Hello asks for. Raises ProtocolError (no Hello), Fault (not to be had)."""
        hello = codec.decode_hello(envelope.parse(pb.ClientMessage, first, envelope.FROM_ROBOT))
        model = self._models.get(hello.model)
        if model is None:
            reason = f"model {hello.model!r} is not offered here; offered: [{self._models.names}]"
            raise Fault(grpc.StatusCode.NOT_FOUND, reason)
        name = f"{hello.robot or 'robot'} at {unquote(peer)}"
        try:
            session = model.open_session(hello, name, outbox, share)
        except ProtocolError as error:
            raise Fault(grpc.StatusCode.FAILED_PRECONDITION, str(error)) from error
        log.info("%s runs %s", name, model.name)
        extra = extra_cameras((camera.name for camera in hello.cameras), model.policy)
        if extra:
            log.warning("%s: cameras [%s] are not used by %s", name, ", ".join(extra), model.name)
        return model, session


class _Gone(Exception):
    """The stream ended before there was a session."""


def _stopping() -> Fault:
    return Fault(grpc.StatusCode.UNAVAILABLE, "the server is stopping")


_ENCODE: Mapping[type, Callable[[Any], pb.ServerMessage]] = {
    Welcome: codec.encode_welcome,
    Chunk: codec.encode_chunk,
    Skipped: codec.encode_skipped,
    Failure: codec.encode_failure,
    Ping: codec.encode_pong,
    Replaced: codec.encode_replaced,
    Pace: codec.encode_pace,
    Received: codec.encode_received,
}
_ANSWERS = (Chunk, Skipped, Failure)


def _encode(outgoing: Outgoing, stats: ModelStats) -> pb.ServerMessage:
    message = outgoing.message
    encoded = _ENCODE[type(message)](message)
    finish_s = time.monotonic() - outgoing.since_s
    if isinstance(message, Chunk):
        encoded.chunk.times.finish = finish_s
    if isinstance(message, _ANSWERS):
        stats.answered(message, finish_s)
    return encoded
