"""The connection to the policy server: handshake, one bidirectional stream, back-off when it breaks."""

from __future__ import annotations

import ipaddress
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol

import grpc

from edge_runtime.errors import AccessError, ConfigError, EdgeRuntimeError, ProtocolError, StreamError
from edge_runtime.slot import Closed, LatestSlot
from edge_runtime.timing import StageTimes
from edge_runtime.wire import codec, policy_pb2, policy_pb2_grpc
from edge_runtime.wire.handshake import differences, successor_differences
from edge_runtime.wire.messages import (
    Answer,
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

ATTEMPT_S = 1.0  # to connect, and again to be welcomed
PING_EVERY_S = 1.0
SILENT_S = 1.0  # no word at all for so long, a ping included, and an answer lost: the link is dead
BACK_OFF_S = (0.0, 0.1, 0.2, 0.4)  # then the last again

_CHANNEL_OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", 4 * 1024 * 1024),
    ("grpc.use_local_subchannel_pool", 1),  # a fresh channel is a fresh connection, with no old back-off
    ("grpc.enable_retries", 0),
)
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


def open_channel(address: str, *, insecure: bool) -> grpc.Channel:
    """A channel to HOST:PORT or unix:/path. Beyond loopback only with `insecure`. Raises ConfigError."""
    if not address.startswith("unix:"):
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ConfigError(f"server_address: {address!r} is not HOST:PORT or unix:/path")
        if not insecure and not is_loopback(host):
            raise ConfigError(
                f"server_address: {address} is beyond loopback and not encrypted; --insecure=true allows it"
            )
    return grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class PolicyStream:
    """Keeps one stream to the server alive in a thread of its own, from `start` to `stop`.

    `failure()` holds the error that ended it for good: ProtocolError, AccessError, or StreamError after
    `give_up_after_s` without a server.
    """

    def __init__(
        self,
        address: str,
        *,
        insecure: bool = False,
        jpeg_quality: int = 90,
        give_up_after_s: float = 30.0,
        stages: StageTimes | None = None,
    ) -> None:
        self._address = address
        self._insecure = insecure
        self._jpeg_quality = jpeg_quality
        self._give_up_after_s = give_up_after_s
        self._stages = stages or StageTimes()
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._connection: _Connection | None = None
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
            with open_channel(self._address, insecure=self._insecure) as channel:
                try:
                    answer = _stub(channel).Describe(policy_pb2.DescribeRequest(), timeout=ATTEMPT_S)
                    return codec.decode_description(answer)
                except grpc.RpcError as error:
                    reason = _translate(error, self._address)
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
        patience = _Patience(self._give_up_after_s)
        while not self._stopping.is_set():
            connection = _Connection(self._jpeg_quality, self._stages)
            with self._lock:
                self._connection = connection
            try:
                with open_channel(self._address, insecure=self._insecure) as channel:
                    for message in connection.messages(channel, hello, self._address):
                        if isinstance(message, Welcome):
                            found = differences(hello, message.policy)
                            if found:
                                raise ProtocolError(f"{self._address} welcomed another robot: " + "; ".join(found))
                            self.reconnects += bool(hello.digest)
                            log.info("%s to %s", "reconnected" if hello.digest else "connected", self._address)
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
                reason = _Broken(f"{self._address} closed the stream")
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

    def __init__(self, jpeg_quality: int, stages: StageTimes) -> None:
        self._jpeg_quality = jpeg_quality
        self._stages = stages
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
        """Seconds since the ping that this one answers."""
        self._ponged = ping.id
        return time.monotonic() - self._pinged_s

    def messages(self, channel: grpc.Channel, hello: Hello, address: str) -> Iterator[ServerMessage]:
        """What the server says, Welcome first. Raises _Broken, ProtocolError, AccessError."""
        try:
            grpc.channel_ready_future(channel).result(timeout=ATTEMPT_S)
        except grpc.FutureTimeoutError as error:
            raise _Broken(f"{address} does not answer") from error
        self._call = _stub(channel).Act(self._requests(hello))
        unwelcome = threading.Timer(ATTEMPT_S, self.cancel, ("no welcome from the server",))
        unwelcome.daemon = True
        unwelcome.start()
        try:
            for wire_message in self._call:
                message = codec.decode_server_message(wire_message, self.policy)
                self._heard_s = time.monotonic()
                if isinstance(message, Welcome):
                    if self.policy is not None:
                        raise ProtocolError(f"{address} welcomed twice")
                    unwelcome.cancel()
                    self.policy = message.policy
                elif isinstance(message, Replaced):
                    self._succeed(message.policy, hello, address)
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
            yield from messages


def _stub(channel: grpc.Channel) -> Any:
    return policy_pb2_grpc.PolicyServiceStub(channel)  # type: ignore[no-untyped-call]  # generated without types


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
            raise StreamError(f"no server for {waited_s:.0f} s: {reason}") from reason
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
