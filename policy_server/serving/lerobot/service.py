"""LeRobot's `transport.AsyncInference` <-> sessions: its client runs unchanged, and nothing is unpickled."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from urllib.parse import unquote

import grpc

from edge_runtime.errors import ProtocolError
from edge_runtime.program.logs import Sparing
from edge_runtime.wire.fit import differences
from edge_runtime.wire.messages import Camera, Chunk, Failure, Hello, Joint, Policy
from policy_server.config import LimitsConfig
from policy_server.door.admission import Admission, Fault
from policy_server.door.deadlines import Deadlines
from policy_server.door.peers import Peers
from policy_server.door.refusals import Refusals
from policy_server.door.stream_limits import StreamLimits
from policy_server.serving.fairness import Share
from policy_server.serving.lerobot import envelope, said
from policy_server.serving.lerobot.client import SIMILAR, Answers, QueueLevel, Timestamps, observe, wrong_sizes
from policy_server.serving.lerobot.reply import encode
from policy_server.serving.model import Model
from policy_server.serving.models import Models

log = logging.getLogger(__name__)
log.addFilter(Sparing())  # a stranger can cause its lines

WIRE = "lerobot"
POLL_S = 2.0  # the longest that GetActions waits, as in LeRobot's server
GONE_S = 10.0  # without a call: a client polls all the time
_METHODS = ("Ready", "SendPolicyInstructions", "SendObservations", "GetActions")
Call = Callable[[Iterator[bytes], grpc.ServicerContext], Iterator[bytes]]


class LeRobotService:
    """Serves `models` to LeRobot's clients; each peer (address and port: one channel) has a session of its own.

    `strict` refuses a client that asks for another policy than is served here; otherwise it is a warning.
    """

    def __init__(
        self,
        models: Models,
        *,
        strict: bool,
        admission: Admission,
        peers: Peers,
        limits: LimitsConfig,
        deadlines: Deadlines,
        refused: Refusals,
    ) -> None:
        self._models = models
        self._strict = strict
        self._admission = admission
        self._peers = peers
        self._limits = limits
        self._deadlines = deadlines
        self._refused = refused
        self._numbers = itertools.count()
        self._lock = threading.Lock()  # over the clients
        self._clients: dict[str, _Client] = {}
        self._stopping = False

    def handler(self) -> grpc.GenericRpcHandler:
        """All four are streams to gRPC: a worker would wait for an ordinary call's one message, for ever if need be."""
        calls = (self._ready, self._set_up, self._observe, self._act)
        return grpc.method_handlers_generic_handler(
            envelope.SERVICE,
            {
                name: grpc.stream_stream_rpc_method_handler(self._guarded(call))
                for name, call in zip(_METHODS, calls, strict=True)
            },
        )

    def stop(self) -> None:
        """End every session; new ones are refused."""
        with self._lock:
            self._stopping = True
            peers = list(self._clients)
        for peer in peers:
            self._drop(peer)

    def _guarded(self, call: Call) -> Call:
        """`call`, with errors as statuses, and ended when its request is not complete in time."""

        def guarded(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            peer = context.peer()
            key = (self, context)
            self._deadlines.set(key, self._limits.unfinished_s, context.cancel)
            try:
                yield from call(requests, context)
            except ProtocolError as error:
                self._refused(peer, str(error))
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            except Fault as fault:
                self._refused(peer, str(fault))
                context.abort(fault.code, str(fault))
            except grpc.RpcError as error:
                error.__traceback__ = None  # gRPC keeps the error in a cycle, and its traceback the pictures
            finally:
                self._deadlines.clear(key)

        return guarded

    def _ready(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        for _ in requests:
            pass
        self._warm()
        self._drop(context.peer())  # it begins anew
        yield envelope.EMPTY

    def _set_up(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        told = said.setup(envelope.setup(b"".join(itertools.islice(requests, 1))))
        self._warm()
        peer = context.peer()
        model, asked = self._asked(told)
        if not asked:
            what = f"{told.policy_type} {told.path}"
            if self._strict:
                reason = f"the client asks for {what}, and [{self._models.names}] is served (--lerobot.strict)"
                raise Fault(grpc.StatusCode.FAILED_PRECONDITION, reason)
            log.warning("%s asks for %s, and gets %s", unquote(peer), what, model.name)
        found = _differences(told, model.policy)
        if found:
            reason = f"this robot does not fit policy {model.name}: {'; '.join(found)}"
            raise Fault(grpc.StatusCode.FAILED_PRECONDITION, reason)
        self._drop(peer)
        self._open(context, model, min(told.rows, model.policy.chunk_size), dict(told.rename))
        yield envelope.EMPTY

    def _observe(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        began_s = time.monotonic()
        seen = said.observation(self._whole(requests))
        client = self._client(context)
        client.limits.heard(asks=True)
        client.feed(seen, time.monotonic() - began_s)
        yield envelope.EMPTY

    def _act(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        for _ in requests:
            pass
        client = self._client(context)
        outgoing = client.answers.take(min(POLL_S, self._limits.unfinished_s / 2))
        if outgoing is None:
            yield envelope.EMPTY
            return
        answer = outgoing.message
        if isinstance(answer, Failure):
            client.model.stats.answered(answer, 0.0, WIRE)
            reason = f"observation {answer.observation} failed (id {answer.error_id}): {answer.message}"
            raise Fault(grpc.StatusCode.INTERNAL, reason)
        assert isinstance(answer, Chunk)
        encoded = client.encode(answer)
        client.model.stats.answered(answer, time.monotonic() - outgoing.since_s, WIRE)
        client.level.sent(answer.first_timestep, len(answer.actions), time.monotonic())
        delivered = False
        try:
            yield encoded
            delivered = context.is_active()
        finally:
            if not delivered:
                client.level.forget()

    def _whole(self, requests: Iterator[bytes]) -> bytes | memoryview:
        """The bytes of one observation. Raises ProtocolError for pieces out of order, or for too many bytes."""
        pieces: list[memoryview] = []
        size = 0
        for request in requests:
            state, data = envelope.piece(request)
            if state not in (envelope.BEGIN, envelope.MIDDLE, envelope.END):
                raise ProtocolError(f"transfer_state: {state} is not 1, 2 or 3")
            if state == envelope.BEGIN:
                pieces, size = [], 0
            size += len(data)
            if size > self._limits.observation_bytes:
                raise ProtocolError(f"observation: has more than {self._limits.observation_bytes} bytes")
            pieces.append(data)
            if state == envelope.END:
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        raise ProtocolError("observation: has no end")

    def _asked(self, told: said.Setup) -> tuple[Model, bool]:
        """The model that the client names, or the default one and False."""
        for model in self._models:
            if model.name in told.path.split("/") and model.policy.type == told.policy_type:
                return model, True
        return self._default(), False

    def _default(self) -> Model:
        model = self._models.get("")
        assert model is not None
        return model

    def _warm(self) -> None:
        for model in self._models:
            if not model.scheduler.warm.done():
                reason = f"{model.name} is warming up ({model.scheduler.progress})"
                raise Fault(grpc.StatusCode.UNAVAILABLE, reason)

    def _client(self, context: grpc.ServicerContext) -> _Client:
        """The peer's own; one that never said what it is (its server was restarted) gets the default policy."""
        peer = context.peer()
        with self._lock:
            client = self._clients.get(peer)
        if client is None:
            self._warm()
            model = self._default()
            log.warning("%s sends no setup, as after a restart of this server; it gets %s", unquote(peer), model.name)
            client = self._open(context, model, model.policy.chunk_size, {})
        self._deadlines.set((self, peer), GONE_S, lambda: self._drop(peer))
        return client

    def _open(self, context: grpc.ServicerContext, model: Model, rows: int, rename: dict[str, str]) -> _Client:
        peer = context.peer()
        share = (*self._peers.share(context), next(self._numbers))
        with self._lock:
            if self._stopping:
                raise Fault(grpc.StatusCode.UNAVAILABLE, "the server is stopping")
            if peer in self._clients:
                return self._clients[peer]
            self._admission.enter((self, peer), peer)
            try:
                client = _Client(
                    model, f"LeRobot's client at {unquote(peer)}", share, rows, rename, self._limits, self._deadlines
                )
            except ProtocolError as error:
                self._admission.leave((self, peer))
                raise Fault(grpc.StatusCode.FAILED_PRECONDITION, str(error)) from error
            except Fault:
                self._admission.leave((self, peer))
                raise
            self._clients[peer] = client
        self._deadlines.set((self, peer), GONE_S, lambda: self._drop(peer))
        log.info("%s runs %s", client.session.name, model.name)
        return client

    def _drop(self, peer: str) -> None:
        self._deadlines.clear((self, peer))
        with self._lock:
            client = self._clients.pop(peer, None)
            if client is not None:
                self._admission.leave((self, peer))
        if client is not None:
            client.close()
            log.info("%s left (%s)", client.session.name, client.session.tally() or "nothing asked")


class _Client:
    """A peer's session, from its first word to its last."""

    def __init__(
        self,
        model: Model,
        name: str,
        share: Share,
        rows: int,
        rename: dict[str, str],
        limits: LimitsConfig,
        deadlines: Deadlines,
    ) -> None:
        """Raises ProtocolError when robot and policy do not fit, Fault when the model is not offered."""
        policy = model.policy
        self.model = model
        self.answers = Answers()
        self.limits = StreamLimits(limits, deadlines, end=self.answers.close)
        self.level = QueueLevel(rows)
        self._times = Timestamps()
        self._rename = rename
        self._module = said.HELPERS[0]
        self._ids = itertools.count(1)
        self._feeding = threading.Lock()  # one observation at a time: ids grow as they are fed
        # LeRobot's wire has no units, rate or extra state: those are taken to be the policy's.
        hello = Hello(policy.joints, policy.cameras, (), policy.fps, policy.name, rows, SIMILAR, name)
        self.session = model.open_session(hello, name, self.answers, share, wire=WIRE)

    def feed(self, seen: said.Seen, receive_s: float) -> None:
        with self._feeding:
            number = next(self._ids)
            must_go = self.level.must_go(seen.timestep, time.monotonic()) or seen.must_go
            whole = observe(seen, self.session.policy, self._rename, id=number, session=0, must_go=must_go)
            self._module = seen.module
            self._times.note(number, seen.timestamp)
            self.session.feed(whole, receive_s)

    def encode(self, chunk: Chunk) -> bytes:
        began = self._times.of(chunk.observation)
        period_s = 1 / self.session.policy.fps
        return envelope.actions(encode(chunk.actions, chunk.first_timestep, began, period_s, self._module))

    def close(self) -> None:
        self.limits.over()
        self.model.close_session(self.session)
        self.answers.close()


class Refuser:
    """Answers LeRobot's clients at the port of our own wire: they are to be told where to go."""

    def __init__(self, refused: Refusals, listen: str) -> None:
        self._refused = refused
        self._remedy = f"connect to {listen}" if listen else "start the server with --lerobot_listen=127.0.0.1:8081"

    def handler(self) -> grpc.GenericRpcHandler:
        method = grpc.stream_stream_rpc_method_handler(self._refuse)
        return grpc.method_handlers_generic_handler(envelope.SERVICE, dict.fromkeys(_METHODS, method))

    def _refuse(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        reason = f"this port is for edge-runtime, and the caller is LeRobot's client: {self._remedy}"
        self._refused(context.peer(), reason)
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, reason)
        yield b""


def _differences(told: said.Setup, policy: Policy) -> list[str]:
    """What keeps a robot that is as `told` from running `policy`; what LeRobot's wire does not say is taken to fit."""
    sizes: dict[str, tuple[int, ...]] = {told.rename.get(name, name): size for name, size in told.cameras.items()}
    units = {joint.name: joint.unit for joint in policy.joints}
    joints = tuple(Joint(name, units.get(name, "?")) for name in told.joints)
    shapes = {camera.name: (camera.height, camera.width) for camera in policy.cameras}
    cameras = tuple(Camera(name, *shapes.get(name, (1, 1))) for name in sizes)
    rows = min(told.rows, policy.chunk_size)
    hello = Hello(joints, cameras, (), policy.fps, actions_per_chunk=rows)
    return [*differences(hello, policy), *wrong_sizes(sizes, policy)]
