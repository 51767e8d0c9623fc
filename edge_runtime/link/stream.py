"""The conversation with the policy server: what it offers, one stream after another, back-off in between."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, Protocol

import grpc

from edge_runtime.errors import EdgeRuntimeError, ProtocolError, StreamError
from edge_runtime.link.channel import Access
from edge_runtime.link.connection import ATTEMPT_S, DESCRIBE, Broken, Connection, connect, translate
from edge_runtime.link.traffic import Traffic
from edge_runtime.link.uplink import Uplink
from edge_runtime.program.spell import Spell
from edge_runtime.timing import StageTimes
from edge_runtime.wire import codec, envelope
from edge_runtime.wire.fit import differences
from edge_runtime.wire.messages import (
    RECEIVED,
    Answer,
    Hello,
    Observation,
    Pace,
    Ping,
    Policy,
    Replaced,
    ServerDescription,
    Welcome,
)

log = logging.getLogger(__name__)

BACK_OFF_S = (0.0, 0.1, 0.2, 0.4)  # then the last again


class Conversation(Protocol):
    """What the stream tells about itself; `Observer` is one."""

    def connected(self, policy: Policy) -> None: ...
    def disconnected(self) -> None: ...
    def answered(self, answer: Answer) -> None: ...
    def pinged(self, seconds: float) -> None: ...
    def replaced(self, policy: Policy) -> None: ...
    def paced(self, interval_s: float) -> None: ...


class PolicyStream:
    """Keeps one stream to the server alive while `run` lasts, in the caller's thread; the rest is for other threads.

    `give_up_after_s` without a server is the end; 0 = never. `lead` is the part of a chunk that is at most left when
    an observation is sent: quality `auto` goes by it; infinite where the queue may run dry.
    """

    def __init__(
        self,
        access: Access,
        *,
        jpeg_quality: int | Literal["auto"] = "auto",
        lead: float = math.inf,
        give_up_after_s: float = 30.0,
        stages: StageTimes | None = None,
    ) -> None:
        self._access = access
        self._lead = lead
        self.uplink = Uplink(jpeg_quality)
        self._give_up_after_s = give_up_after_s
        self._stages = stages or StageTimes()
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self.traffic = Traffic()
        self.reconnects = 0

    def describe(
        self, cancelled: threading.Event, attempting: Callable[[], None] = lambda: None
    ) -> ServerDescription | None:
        """What the server offers, waiting for it up to `give_up_after_s`; None once `cancelled`.

        `attempting` is called before each attempt.
        """
        patience = _Patience(self._give_up_after_s)
        while not cancelled.is_set():
            attempting()
            reason: EdgeRuntimeError
            with self._access.open() as channel:
                try:
                    connect(channel, self._access)
                    answer = channel.unary_unary(DESCRIBE)(b"", timeout=ATTEMPT_S, metadata=self._access.metadata)
                    return codec.decode_description(envelope.parse_description(answer))
                except grpc.RpcError as error:
                    reason = translate(error, self._access.address)
                except Broken as error:
                    reason = error
            patience.once_more(cancelled, reason)
        return None

    def send(self, observation: Observation) -> bool:
        """Hand over an observation for the stream that is open now; False when there is none."""
        with self._lock:
            return self._connection is not None and self._connection.offer(observation)

    def suspect(self) -> None:
        """An answer is lost: if not even a ping came back, the link is dead, and a fresh one is tried."""
        with self._lock:
            if self._connection is not None and self._connection.is_silent():
                self._connection.cancel("nothing heard from the server")

    @property
    def is_uploading(self) -> bool:
        """An observation is on its way and gets on; never so with a server that does not acknowledge."""
        return self.uplink.is_busy

    def stop(self) -> None:
        """End the stream; stopping twice is harmless."""
        self._stopping.set()
        with self._lock:
            if self._connection is not None:
                self._connection.cancel("stopped")

    def run(self, hello: Hello, conversation: Conversation) -> None:
        """Connect, keep connected, return after `stop`.

        Raises ProtocolError or AccessError when refused, StreamError after `give_up_after_s` without a server.
        """
        address = self._access.address
        hello = replace(hello, understands=(RECEIVED,))
        if hello.actions_per_chunk:
            self.uplink.lead_s = self._lead * hello.actions_per_chunk / hello.fps
        patience = _Patience(self._give_up_after_s)
        while not self._stopping.is_set():
            connection = Connection(self.uplink, self._stages, self.traffic)
            with self._lock:
                if self._stopping.is_set():  # `stop` has found no connection to cancel
                    return
                self._connection = connection
            try:
                with self._access.open() as channel:
                    for message in connection.messages(channel, hello, self._access):
                        if isinstance(message, Welcome):
                            found = differences(hello, message.policy)
                            if found:
                                raise ProtocolError(f"{address} welcomed another robot: " + "; ".join(found))
                            self.reconnects += bool(hello.digest)
                            if not hello.digest or patience.news:
                                log.info("%s to %s", "reconnected" if hello.digest else "connected", address)
                                patience.news = False
                            hello = replace(hello, digest=message.policy.digest)
                            conversation.connected(message.policy)
                        elif isinstance(message, Ping):
                            conversation.pinged(connection.pong(message))
                        elif isinstance(message, Replaced):
                            guidance = hello.guidance if message.policy.guided else None
                            hello = replace(hello, digest=message.policy.digest, guidance=guidance)  # to reconnect
                            conversation.replaced(message.policy)
                        elif isinstance(message, Pace):
                            conversation.paced(message.interval_s)
                        elif isinstance(message, Answer):
                            conversation.answered(message)
                            patience.renew()  # a welcome alone proves nothing: the stream may break again and again
                reason = Broken(f"{address} closed the stream")
            except Broken as error:
                reason = error
            finally:
                with self._lock:
                    self._connection = None
                connection.close()
                conversation.disconnected()
            if not self._stopping.is_set():
                patience.once_more(self._stopping, reason)


class _Patience:
    """Counts failed attempts and waits between them; raises the last reason once they went on for too long."""

    def __init__(self, give_up_after_s: float) -> None:
        self._give_up_after_s = give_up_after_s
        self._attempts = 0
        self._since_s: float | None = None  # no server has answered
        self._trouble = Spell()
        self.news = False  # it was said that there is no stream, and not yet that there is one again

    def renew(self) -> None:
        """An answer came: there is a server. One that breaks each stream after an answer still is asked ever later."""
        self._since_s = None
        if self._trouble.succeeds(time.monotonic()):
            self._attempts = 0

    def once_more(self, cancelled: threading.Event, reason: EdgeRuntimeError) -> None:
        if not isinstance(reason, Broken):
            raise reason
        now_s = time.monotonic()
        if self._trouble.fails(now_s):
            self._attempts = 0
            self.news = True
            log.warning("no stream: %s; trying again", reason)
        if self._since_s is None:
            self._since_s = now_s
        waited_s = now_s - self._since_s
        if self._give_up_after_s and waited_s >= self._give_up_after_s:
            raise StreamError(f"server_address: {reason} (for {waited_s:.3g} s: give_up_after_s)") from reason
        cancelled.wait(BACK_OFF_S[min(self._attempts, len(BACK_OFF_S) - 1)])
        self._attempts += 1
