"""A robot that says exactly what a test wants, over a real connection."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc

from edge_runtime.wire import codec
from edge_runtime.wire import policy_pb2 as pb
from edge_runtime.wire.messages import Hello, Observation, Policy, ServerMessage, Welcome

ACT = "/edge_runtime.policy.v1.PolicyService/Act"
DESCRIBE = "/edge_runtime.policy.v1.PolicyService/Describe"
DEADLINE_S = 20.0


def hello_to(policy: Policy, **changes: Any) -> Hello:
    """What a robot that fits `policy` says."""
    fitting: dict[str, Any] = {
        "joints": policy.joints,
        "cameras": policy.cameras,
        "extra_state": policy.extra_state,
        "fps": policy.fps,
        "model": policy.name,
        "robot": "testarm",
    }
    return Hello(**fitting | changes)


def look(id: int, timestep: int = 0, state: float = 0.0, **changes: Any) -> Observation:
    """An observation of three joints that all stand at `state`; must_go, session and the rest as named."""
    values: dict[str, Any] = {"session": 1, "must_go": False, "state": np.full(3, state, np.float32)} | changes
    return Observation(id=id, timestep=timestep, **values)


class Robot:
    """One stream. `ask` sends an observation and waits for an answer; `send` and `receive` are its halves."""

    def __init__(
        self, address: str, hello: Hello | None, *, timeout_s: float = DEADLINE_S, options: tuple[Any, ...] = ()
    ) -> None:
        self._channel = grpc.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1), *options))
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        if hello is not None:
            self._requests.put(codec.encode_hello(hello).SerializeToString())
        self._policy: Policy | None = None
        self.call = self._channel.stream_stream(ACT, response_deserializer=pb.ServerMessage.FromString)(
            iter(self._requests.get, None), timeout=timeout_s
        )

    def __enter__(self) -> Robot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._requests.put(None)
        self.call.cancel()
        self._channel.close()

    def send(self, *observations: Observation, jpeg_quality: int = 0) -> None:
        for observation in observations:
            for message in codec.encode_observation(observation, jpeg_quality):
                self._requests.put(message.SerializeToString())

    def send_bytes(self, data: bytes) -> None:
        self._requests.put(data)

    def send_no_more(self) -> None:
        self._requests.put(None)

    def receive(self) -> ServerMessage:
        """The next message; grpc.RpcError with the status once the stream has ended, StopIteration if it ended well."""
        message = codec.decode_server_message(next(self.call), self._policy)
        if isinstance(message, Welcome):
            self._policy = message.policy
        return message

    def ask(self, observation: Observation, jpeg_quality: int = 0) -> Any:
        self.send(observation, jpeg_quality=jpeg_quality)
        return self.receive()

    def welcomed(self) -> Robot:
        assert isinstance(self.receive(), Welcome)
        return self


def refusal(address: str, hello: Hello) -> tuple[grpc.StatusCode, str]:
    """The status with which a stream that begins with `hello` is refused."""
    with Robot(address, hello) as robot:
        return status_of(robot)


def status_of(robot: Robot) -> tuple[grpc.StatusCode, str]:
    """How the stream ends, once it does."""
    try:
        while True:
            robot.receive()
    except grpc.RpcError as error:
        return error.code(), error.details()
    except StopIteration:
        return grpc.StatusCode.OK, ""


def watch_health(channel: grpc.Channel, service: str = "") -> Iterator[str]:
    """The names of the health states, as they come."""
    request = health_pb2.HealthCheckRequest(service=service)
    for response in health_pb2_grpc.HealthStub(channel).Watch(request, timeout=DEADLINE_S):
        yield health_pb2.HealthCheckResponse.ServingStatus.Name(response.status)
