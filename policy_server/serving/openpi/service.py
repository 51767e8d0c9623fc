"""openpi's messages <-> sessions: each connection has a session, and each observation one answer."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from typing import Any

import grpc
import numpy as np

from edge_runtime.errors import ConfigError, ProtocolError
from edge_runtime.program.logs import Sparing
from edge_runtime.wire.messages import Chunk, Failure, Frame, Hello, Observation, ServerMessage, Skipped
from policy_server.bundle import IMAGES, STATE
from policy_server.config import LimitsConfig
from policy_server.door.admission import Admission, Fault
from policy_server.door.deadlines import Deadlines
from policy_server.door.peers import Peers
from policy_server.door.stream_limits import StreamLimits
from policy_server.engines.openpi import messages
from policy_server.engines.openpi.layout import Layout, MapFile, natural
from policy_server.serving.fairness import Share
from policy_server.serving.model import Model
from policy_server.serving.models import Models
from policy_server.serving.outbox import Outbox

log = logging.getLogger(__name__)
log.addFilter(Sparing())  # a stranger can cause its lines

WIRE = "openpi"


class OpenpiService:
    """Serves `models` to openpi's clients, whose observations look as `file` says, or hold each input by its name."""

    def __init__(
        self,
        models: Models,
        file: MapFile | None,
        *,
        admission: Admission,
        peers: Peers,
        limits: LimitsConfig,
        deadlines: Deadlines,
    ) -> None:
        """Raises ConfigError when the map does not say where a policy's input is."""
        self._models, self._file = models, file
        self._admission, self._peers = admission, peers
        self._limits, self._deadlines = limits, deadlines
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._clients: set[OpenpiClient] = set()
        self._stopping = False
        for model in models:
            Layout(file or natural(model.policy), model.policy)

    def model(self, name: str) -> Model:
        """The model of that name, the default for an empty one. Raises Fault when it is not offered."""
        model = self._models.get(name)
        if model is None:
            reason = f"model {name[:100]!r} is not offered here; offered: [{self._models.names}]"
            raise Fault(grpc.StatusCode.NOT_FOUND, reason)
        if not model.scheduler.warm.done():
            raise Fault(grpc.StatusCode.UNAVAILABLE, f"{model.name} is warming up ({model.scheduler.progress})")
        return model

    @property
    def is_warm(self) -> bool:
        return all(model.scheduler.warm.done() for model in self._models)

    def enter(self, model: Model, peer: str, name: str, token: str) -> OpenpiClient:
        """A session for the client at `peer` (in gRPC's form). Raises Fault when there is no place for it."""
        guest = object()
        share: Share = (*self._peers.share_of(peer, token), next(self._numbers))
        self._admission.enter(guest, peer)
        try:
            with self._lock:
                if self._stopping:
                    raise Fault(grpc.StatusCode.UNAVAILABLE, "the server is stopping")
                file = self._file or natural(model.policy)
                client = OpenpiClient(model, file, name, share, guest, self._limits, self._deadlines)
                self._clients.add(client)
        except Exception as error:
            self._admission.leave(guest)
            if isinstance(error, ConfigError | ProtocolError):
                raise Fault(grpc.StatusCode.FAILED_PRECONDITION, str(error)) from error
            raise
        log.info("%s runs %s", name, model.name)
        return client

    def leave(self, client: OpenpiClient) -> None:
        """The connection has ended."""
        with self._lock:
            self._clients.discard(client)
        client.close()
        self._admission.leave(client.guest)
        log.info("%s left (%s)", client.session.name, client.session.tally() or "nothing asked")

    def stop(self) -> None:
        """End every session; new ones are refused."""
        with self._lock:
            self._stopping = True
            clients = list(self._clients)
        for client in clients:
            client.outbox.close(Fault(grpc.StatusCode.UNAVAILABLE, "the server is stopping"))


class Answers(Outbox):
    """Of what a session says, the answers alone: nothing else has a word on this wire, nor is it read between them."""

    def put(self, message: ServerMessage, since_s: float | None = None) -> None:
        if isinstance(message, Chunk | Failure | Skipped):
            super().put(message, since_s)


class OpenpiClient:
    """A connection's session. `answer` may be called on any thread, one call at a time."""

    def __init__(
        self,
        model: Model,
        file: MapFile,
        name: str,
        share: Share,
        guest: object,
        limits: LimitsConfig,
        deadlines: Deadlines,
    ) -> None:
        """Raises ConfigError (the map), ProtocolError, Fault (the model is not offered)."""
        policy = model.policy
        self.model, self.guest = model, guest
        self.outbox = Answers(limits.unread_answers, on_overflow=lambda: None)
        self._answers = iter(self.outbox)
        self._layout, self._key = Layout(file, policy), file.actions
        self._limits = StreamLimits(limits, deadlines, end=self.outbox.close)
        self._ids = itertools.count(1)
        # openpi's wire has no joint names, units or rate: those are taken to be the policy's.
        hello = Hello(policy.joints, policy.cameras, policy.extra_state, policy.fps, policy.name, robot=name)
        self.session = model.open_session(hello, name, self.outbox, share, wire=WIRE)

    @property
    def metadata(self) -> bytes:
        """What the server says first."""
        policy = self.session.policy
        return messages.pack(
            {
                "policy": policy.name,
                "joints": [joint.name for joint in policy.joints],
                "units": [joint.unit for joint in policy.joints],
                "chunk_size": policy.chunk_size,
                "fps": policy.fps,
            }
        )

    def answer(self, message: str | bytes) -> str | bytes:
        """The chunk for an observation, or a text that says what is wrong. Raises the Fault that ends the session."""
        began_s = time.monotonic()
        self._limits.heard(asks=True)
        try:
            observation = self._observation(message)
        except ProtocolError as error:
            log.warning("%s: %s", self.session.name, error)
            return str(error)
        self.session.feed(observation, time.monotonic() - began_s)
        outgoing = next(self._answers, None)
        if outgoing is None:
            raise self.outbox.fault or Fault(grpc.StatusCode.UNAVAILABLE, "the session has ended")
        answer = outgoing.message
        assert isinstance(answer, Chunk | Failure | Skipped)
        self.model.stats.answered(answer, time.monotonic() - outgoing.since_s, WIRE)
        return self._encode(answer)

    def close(self) -> None:
        self._limits.over()
        self.model.close_session(self.session)
        self.outbox.close()

    def _observation(self, message: str | bytes) -> Observation:
        if isinstance(message, str):
            raise ProtocolError("observation: is text, and not msgpack")
        inputs, task = self._layout.read(messages.unpack(message))
        number = next(self._ids)
        return Observation(
            id=number,
            session=0,
            timestep=number,
            must_go=True,  # the client waits for this one
            state=inputs.pop(STATE),
            frames=tuple(Frame.raw(n.removeprefix(IMAGES), a) for n, a in inputs.items() if n.startswith(IMAGES)),
            extra_state={name: array for name, array in inputs.items() if not name.startswith(IMAGES)},
            task=task,
        )

    def _encode(self, answer: Chunk | Failure | Skipped) -> str | bytes:
        if isinstance(answer, Failure):
            return f"the observation failed (id {answer.error_id}): {answer.message}"
        if isinstance(answer, Skipped):
            return f"the observation was not run: {answer.reason}"
        timing: dict[str, Any] = {"infer_ms": answer.times.infer * 1e3, "wait_ms": answer.times.wait * 1e3}
        actions = np.ascontiguousarray(answer.actions, np.float32)
        return messages.pack({self._key: actions, "server_timing": timing})
