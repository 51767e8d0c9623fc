"""One connection to the policy server: the way there, what is said on its stream, and how it breaks."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc

from edge_runtime.errors import AccessError, EdgeRuntimeError, ProtocolError, StreamError
from edge_runtime.link import diagnosis
from edge_runtime.link.channel import Access
from edge_runtime.link.traffic import Traffic
from edge_runtime.link.uplink import Uplink
from edge_runtime.slot import Closed, LatestSlot
from edge_runtime.timing import StageTimes
from edge_runtime.wire import codec, envelope, policy_pb2
from edge_runtime.wire.fit import successor_differences
from edge_runtime.wire.messages import (
    RECEIVED,
    Answer,
    Chunk,
    Hello,
    Observation,
    Ping,
    Policy,
    Received,
    Replaced,
    ServerMessage,
    Welcome,
)

_SERVICE = policy_pb2.DESCRIPTOR.services_by_name["PolicyService"].full_name
ACT = f"/{_SERVICE}/Act"
DESCRIBE = f"/{_SERVICE}/Describe"

ATTEMPT_S = 1.0  # to connect, and again to be welcomed
PING_EVERY_S = 1.0
SILENT_S = 1.0  # no word at all for so long, a ping included, and an answer lost: the link is dead

_REFUSED = {
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.OUT_OF_RANGE,
}
_KNOWS_NO_SUCH_METHOD = "Method not found!"  # says gRPC for Python of a service that is not there
_DENIED = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}


class Broken(StreamError):
    """This connection is over; the next may hold."""


class Connection:
    """One stream: what is sent comes from a slot, so that only the newest observation ever waits."""

    def __init__(self, uplink: Uplink, stages: StageTimes, traffic: Traffic) -> None:
        self._uplink = uplink
        self._upload = 0  # the number of this stream
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
        """A ping or a piece is unanswered and nothing else came either, while the line had nothing of ours to carry.

        A piece counts, since no ping leaves behind an upload that stands still.
        """
        if self._uplink.is_busy:
            return False
        now_s = time.monotonic()
        is_due = self._ponged < self._pings or self._uplink.awaits_acknowledgement
        return is_due and now_s - max(self._heard_s, self._pinged_s) > SILENT_S

    def cancel(self, why: str) -> None:
        self._why_cancelled = why
        self.close()
        if self._call is not None:
            self._call.cancel()

    def close(self) -> None:
        self._slot.close()
        self._uplink.close()

    def pong(self, ping: Ping) -> float:
        """Seconds since the ping that this one answers. Raises ProtocolError when none was sent."""
        if ping.id != self._pings or self._ponged == self._pings:
            raise ProtocolError(f"the server answered ping {ping.id}, which was not sent")
        self._ponged = ping.id
        return time.monotonic() - self._pinged_s

    def messages(self, channel: grpc.Channel, hello: Hello, access: Access) -> Iterator[ServerMessage]:
        """What the server says, Welcome first. Raises Broken, ProtocolError, AccessError."""
        connect(channel, access)
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
                    self._upload = self._uplink.open(acknowledges=RECEIVED in message.understands)
                    self.policy = message.policy
                    most = envelope.from_server(message.policy)
                elif isinstance(message, Replaced):
                    self._succeed(message.policy, hello, address)
                elif isinstance(message, Received):
                    self._uplink.received(message.observation, message.size)
                    continue
                elif isinstance(message, Chunk):
                    self._traffic.receives(len(data))
                if isinstance(message, Answer):
                    self._uplink.answered(message.observation)
                yield message
        except grpc.RpcError as error:
            raise (
                Broken(f"{address}: {self._why_cancelled}") if self._why_cancelled else translate(error, address)
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
            uplink = self._uplink
            messages = codec.encode_observation(observation, uplink.choose_quality(), uplink.piece)
            self._stages.record("encode", time.monotonic() - started_s)
            self._traffic.sends(messages)
            if not uplink.begin(self._upload, observation.id, sum(len(message.piece.data) for message in messages)):
                return
            for message in messages:
                if not uplink.wait_for_room(self._upload, len(message.piece.data)):
                    return
                yield message


def connect(channel: grpc.Channel, access: Access) -> None:
    """Returns once the connection stands. Raises AccessError where trying again is of no use, else Broken."""
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
        why = diagnosis.explain(access)
        raise why if isinstance(why, AccessError) else Broken(str(why))


def translate(error: grpc.RpcError, address: str) -> EdgeRuntimeError:
    """A gRPC status as one of our errors: refused, denied, or something that may pass."""
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.UNIMPLEMENTED and details == _KNOWS_NO_SUCH_METHOD:
        details += " LeRobot's policy_server answers so: run policy-server start BUNDLE there"
    if code in _REFUSED:
        return ProtocolError(f"{address} refused: {details}")
    if code in _DENIED:
        return AccessError(f"{address} denied access: {details}")
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        why = details.rpartition("last error: ")[2]  # gRPC's own preamble says nothing
        return Broken(f"{address} is not available: {why or code.name.lower()}")
    return Broken(f"{address}: {code.name.lower()} {details}".rstrip())
