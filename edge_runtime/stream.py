"""The connection to the policy server: handshake, one bidirectional stream, back-off when it breaks."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol

import grpc

from edge_runtime import refusal
from edge_runtime.access import Access
from edge_runtime.errors import AccessError, EdgeRuntimeError, ProtocolError, StreamError
from edge_runtime.slot import Closed, LatestSlot
from edge_runtime.timing import StageTimes
from edge_runtime.traffic import Traffic
from edge_runtime.wire import codec, envelope, policy_pb2
from edge_runtime.wire.handshake import differences, successor_differences
from edge_runtime.wire.messages import (
    Answer,
    Chunk,
    Hello,
    Observation,
    Pace,
    Ping,
    Policy,
    Replaced,
    ServerDescription,
    ServerMessage,
    Welcome,
)

log = logging.getLogger(__name__)

_SERVICE = policy_pb2.DESCRIPTOR.services_by_name["PolicyService"].full_name
ACT = f"/{_SERVICE}/Act"
DESCRIBE = f"/{_SERVICE}/Describe"

ATTEMPT_S = 1.0  # to connect, and again to be welcomed
PING_EVERY_S = 1.0
SILENT_S = 1.0  # no word at all for so long, a ping included, and an answer lost: the link is dead
BACK_OFF_S = (0.0, 0.1, 0.2, 0.4)  # then the last again

_REFUSED = {
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.OUT_OF_RANGE,
}
_DENIED = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}


class Conversation(Protocol):
    """What the stream tells about itself; `Observer` is one."""

    def connected(self, policy: Policy) -> None: ...
    def disconnected(self) -> None: ...
    def answered(self, answer: Answer) -> None: ...
    def pinged(self, seconds: float) -> None: ...
    def replaced(self, policy: Policy) -> None: ...
    def paced(self, interval_s: float) -> None: ...


class PolicyStream:
    """Keeps one stream to the server alive in a thread of its own, from `start` to `stop`.

    `failure()` holds the error that ended it for good: ProtocolError, AccessError, or StreamError after
    `give_up_after_s` without a server.
    """

    def __init__(
        self,
        access: Access,
        *,
        jpeg_quality: int = 93,
        give_up_after_s: float = 30.0,
        stages: StageTimes | None = None,
    ) -> None:
        self._access = access
        self._jpeg_quality = jpeg_quality
        self._give_up_after_s = give_up_after_s
        self._stages = stages or StageTimes()
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._connection: _Connection | None = None
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
                    _connect(channel, self._access)
                    answer = channel.unary_unary(DESCRIBE)(b"", timeout=ATTEMPT_S, metadata=self._access.metadata)
                    return codec.decode_description(envelope.parse_description(answer))
                except grpc.RpcError as error:
                    reason = _translate(error, self._access.address)
                except _Broken as error:
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
        patience = _Patience(self._give_up_after_s)
        while not self._stopping.is_set():
            connection = _Connection(self._jpeg_quality, self._stages, self.traffic)
            with self._lock:
                self._connection = connection
            try:
                with self._access.open() as channel:
                    for message in connection.messages(channel, hello, self._access):
                        if isinstance(message, Welcome):
                            found = differences(hello, message.policy)
                            if found:
                                raise ProtocolError(f"{address} welcomed another robot: " + "; ".join(found))
                            self.reconnects += bool(hello.digest)
                            log.info("%s to %s", "reconnected" if hello.digest else "connected", address)
                            hello = replace(hello, digest=message.policy.digest)
                            conversation.connected(message.policy)
                        elif isinstance(message, Ping):
                            conversation.pinged(connection.pong(message))
                        elif isinstance(message, Replaced):
                            hello = replace(hello, digest=message.policy.digest)  # what a reconnect has to find
                            conversation.replaced(message.policy)
                        elif isinstance(message, Pace):
                            conversation.paced(message.interval_s)
                        else:
                            conversation.answered(message)
                            patience.renew()  # a welcome alone proves nothing: the stream may break again and again
                reason = _Broken(f"{address} closed the stream")
            except _Broken as error:
                reason = error
            finally:
                with self._lock:
                    self._connection = None
                connection.close()
                conversation.disconnected()
            if not self._stopping.is_set():
                patience.once_more(self._stopping, reason)


class _Broken(StreamError):
    """This connection is over; the next may hold."""


class _Connection:
    """One stream: what is sent comes from a slot, so that only the newest observation ever waits."""

    def __init__(self, jpeg_quality: int, stages: StageTimes, traffic: Traffic) -> None:
        self._jpeg_quality = jpeg_quality
        self._stages = stages
        self._traffic = traffic
        self._slot: LatestSlot[Observation] = LatestSlot()
        self._call: Any = None
        self._why_cancelled = ""
        self._heard_s = self._pinged_s = 0.0
        self._pings = 0
        self._ponged = 0
        self.policy: Policy | None = None  # once welcomed

    def offer(self, observation: Observation) -> bool:
        return self.policy is not None and self._slot.put(observation, observation.id)

    def is_silent(self) -> bool:
        """A ping is unanswered and nothing else came either."""
        now_s = time.monotonic()
        return self._ponged < self._pings and now_s - max(self._heard_s, self._pinged_s) > SILENT_S

    def cancel(self, why: str) -> None:
        self._why_cancelled = why
        self.close()
        if self._call is not None:
            self._call.cancel()

    def close(self) -> None:
        self._slot.close()

    def pong(self, ping: Ping) -> float:
        """Seconds since the ping that this one answers. Raises ProtocolError when none was sent."""
        if ping.id != self._pings or self._ponged == self._pings:
            raise ProtocolError(f"the server answered ping {ping.id}, which nobody sent")
        self._ponged = ping.id
        return time.monotonic() - self._pinged_s

    def messages(self, channel: grpc.Channel, hello: Hello, access: Access) -> Iterator[ServerMessage]:
        """What the server says, Welcome first. Raises _Broken, ProtocolError, AccessError."""
        _connect(channel, access)
        address = access.address
        act = channel.stream_stream(ACT, request_serializer=policy_pb2.ClientMessage.SerializeToString)
        self._call = act(self._requests(hello), metadata=access.metadata)
        most = envelope.FROM_SERVER
        unwelcome = threading.Timer(ATTEMPT_S, self.cancel, ("no welcome from the server",))
        unwelcome.daemon = True
        unwelcome.start()
        try:
            for data in self._call:
                message = codec.decode_server_message(envelope.parse(policy_pb2.ServerMessage, data, most), self.policy)
                self._heard_s = time.monotonic()
                if isinstance(message, Welcome):
                    if self.policy is not None:
                        raise ProtocolError(f"{address} welcomed twice")
                    unwelcome.cancel()
                    self.policy = message.policy
                    most = envelope.from_server(message.policy)
                elif isinstance(message, Replaced):
                    self._succeed(message.policy, hello, address)
                elif isinstance(message, Chunk):
                    self._traffic.receives(len(data))
                yield message
        except grpc.RpcError as error:
            raise (
                _Broken(f"{address}: {self._why_cancelled}") if self._why_cancelled else _translate(error, address)
            ) from error
        finally:
            unwelcome.cancel()
            self._call.cancel()

    def _succeed(self, new: Policy, hello: Hello, address: str) -> None:
        assert self.policy is not None  # the codec lets nothing but a welcome come first
        found = successor_differences(self.policy, new, hello.actions_per_chunk or self.policy.chunk_size)
        if found:
            raise ProtocolError(f"{address} replaced the policy by one that does not fit: " + "; ".join(found))
        self.policy = new

    def _requests(self, hello: Hello) -> Iterator[policy_pb2.ClientMessage]:
        yield codec.encode_hello(hello)
        while True:
            try:
                observation = self._slot.take()
            except Closed:
                return
            assert observation is not None
            if time.monotonic() - self._pinged_s >= PING_EVERY_S and self._ponged == self._pings:
                self._pings += 1
                self._pinged_s = time.monotonic()
                yield codec.encode_ping(Ping(self._pings))
            started_s = time.monotonic()
            messages = codec.encode_observation(observation, self._jpeg_quality)
            self._stages.record("encode", time.monotonic() - started_s)
            self._traffic.sends(messages)
            yield from messages


def _connect(channel: grpc.Channel, access: Access) -> None:
    """Returns once the connection stands. Raises AccessError where trying again is of no use, else _Broken."""
    states: queue.SimpleQueue[grpc.ChannelConnectivity] = queue.SimpleQueue()
    heard = states.put
    channel.subscribe(heard, try_to_connect=True)
    until_s = time.monotonic() + ATTEMPT_S
    state = None
    try:
        while state not in (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE):
            state = states.get(timeout=max(0.0, until_s - time.monotonic()))
    except queue.Empty:
        pass
    finally:
        channel.unsubscribe(heard)
    if state is not grpc.ChannelConnectivity.READY:
        why = refusal.explain(access)
        raise why if isinstance(why, AccessError) else _Broken(str(why))


class _Patience:
    """Counts failed attempts and waits between them; raises the last reason once they went on for too long."""

    def __init__(self, give_up_after_s: float) -> None:
        self._give_up_after_s = give_up_after_s
        self.renew()

    def renew(self) -> None:
        self._attempts, self._since_s = 0, 0.0

    def once_more(self, cancelled: threading.Event, reason: EdgeRuntimeError) -> None:
        if not isinstance(reason, _Broken):
            raise reason
        now_s = time.monotonic()
        if self._attempts == 0:
            self._since_s = now_s
            log.warning("no stream: %s; trying again", reason)
        waited_s = now_s - self._since_s
        if self._give_up_after_s and waited_s >= self._give_up_after_s:
            raise StreamError(f"server_address: {reason} (for {waited_s:.3g} s: give_up_after_s)") from reason
        cancelled.wait(BACK_OFF_S[min(self._attempts, len(BACK_OFF_S) - 1)])
        self._attempts += 1


def _translate(error: grpc.RpcError, address: str) -> EdgeRuntimeError:
    """A gRPC status as one of our errors: refused, denied, or something that may pass."""
    code, details = error.code(), error.details() or ""
    if code in _REFUSED:
        return ProtocolError(f"{address} refused: {details}")
    if code in _DENIED:
        return AccessError(f"{address} denied access: {details}")
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        why = details.rpartition("last error: ")[2]  # gRPC's own preamble says nothing
        return _Broken(f"{address} is not available: {why or code.name.lower()}")
    return _Broken(f"{address}: {code.name.lower()} {details}".rstrip())
