"""gRPC against REST: the same observation and chunk over our stream, unary gRPC, raw HTTP and JSON with base64.

    python -m scripts.benches.transport
    python -m scripts.benches.transport --quick

A server in a process of its own answers every observation with the same chunk of 50×6. A round trip is from an
observation in memory to a chunk in memory: packing and unpacking at both ends is in it; JPEG and policy are not. The
ways take turns, block by block, on loopback and behind a line of 100 Mbit/s.
"""

from __future__ import annotations

import base64
import http.client
import http.server
import json
import queue
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import cv2
import grpc
import numpy as np

from edge_runtime.cameras.synthetic import SyntheticCamera
from edge_runtime.config import SyntheticCameraConfig
from edge_runtime.wire import codec, policy_pb2
from edge_runtime.wire.messages import Camera, Chunk, Frame, Joint, Observation, Policy
from scripts.benches.vs_lerobot.line import Line
from scripts.rig.bench import start

JOINTS = tuple(Joint(f"joint_{n}.pos", "degrees") for n in range(6))
CAMERAS = tuple(Camera(name, 480, 640) for name in ("static", "wrist"))
POLICY = Policy("stub", "act", bytes(32), JOINTS, CAMERAS, (), 50, 30.0)
ACTIONS = np.random.default_rng(0).normal(0, 40, (50, 6)).astype(np.float32)
LARGEST = 8 << 20
BLOCK = 10  # round trips of a way before the next one's turn
SLOW = 100e6 / 8  # bytes/s


def observation(number: int, frames: tuple[Frame, ...]) -> Observation:
    return Observation(number, 1, number, False, np.zeros(6, np.float32), frames=frames)


def pictures(quality: int) -> tuple[Frame, ...]:
    """A frame of each camera: raw, or already JPEG of `quality`."""
    camera = SyntheticCamera("view", SyntheticCameraConfig())
    camera.open()
    frame = camera.latest()
    assert frame is not None
    if not quality:
        return tuple(Frame.raw(each.name, frame.pixels) for each in CAMERAS)
    _, data = cv2.imencode(".jpg", frame.pixels, (cv2.IMWRITE_JPEG_QUALITY, quality))
    return tuple(Frame(each.name, 480, 640, "jpeg", data.data.cast("B")) for each in CAMERAS)


# The server.


def answer(number: int) -> policy_pb2.ServerMessage:
    return codec.encode_chunk(Chunk(number, 1, number, ACTIONS, POLICY.digest))


class Grpc(grpc.GenericRpcHandler):
    """`/stream` is one call for all observations, `/unary` a call for each."""

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        if details.method == "/bench/stream":
            return grpc.stream_stream_rpc_method_handler(
                self._stream, policy_pb2.ClientMessage.FromString, policy_pb2.ServerMessage.SerializeToString
            )
        return grpc.stream_unary_rpc_method_handler(
            lambda requests, context: next(self._stream(requests, context)),
            policy_pb2.ClientMessage.FromString,
            policy_pb2.ServerMessage.SerializeToString,
        )

    def _stream(self, requests: Iterator[policy_pb2.ClientMessage], context: Any) -> Iterator[Any]:
        assembler = codec.ObservationAssembler(POLICY)
        for request in requests:
            whole = assembler.feed(request)
            if whole is not None:
                yield answer(whole[0].id)


class Http(http.server.BaseHTTPRequestHandler):
    """POST /raw: state, frames, as bytes; the chunk as bytes. POST /json: the same as JSON, frames in base64."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/raw":
            sizes = [int(size) for size in self.headers["Frames"].split(",")]
            np.frombuffer(body, np.float32, 6)
            assert len(body) == 24 + sum(sizes)
            said = ACTIONS.tobytes()
        else:
            asked = json.loads(body)
            np.array(asked["state"], np.float32)
            for frame in asked["frames"].values():
                base64.b64decode(frame)
            said = json.dumps({"actions": ACTIONS.tolist()}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, format: str, *args: Any) -> None: ...


def serve() -> None:
    """Prints the two ports; ends when stdin closes."""
    calls = grpc.server(futures.ThreadPoolExecutor(8), options=[("grpc.max_receive_message_length", LARGEST)])
    calls.add_generic_rpc_handlers((Grpc(),))
    grpc_port = calls.add_insecure_port("127.0.0.1:0")
    calls.start()
    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Http)
    web.daemon_threads = True
    threading.Thread(target=web.serve_forever, daemon=True).start()
    print(json.dumps([grpc_port, web.server_port]), flush=True)
    sys.stdin.read()
    calls.stop(0)


# The ways.


class Stream:
    """What edge-runtime does: one bidirectional call, frames in pieces."""

    def __init__(self, port: int) -> None:
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self._out: queue.SimpleQueue[policy_pb2.ClientMessage | None] = queue.SimpleQueue()
        self._number = 0
        call = self._channel.stream_stream("/bench/stream", policy_pb2.ClientMessage.SerializeToString)
        self._answers = call(iter(self._out.get, None))

    def ask(self, frames: tuple[Frame, ...]) -> None:
        self._number += 1
        for message in codec.encode_observation(observation(self._number, frames)):
            self._out.put(message)
        codec.decode_chunk(policy_pb2.ServerMessage.FromString(next(self._answers)), POLICY)

    def close(self) -> None:
        self._out.put(None)
        self._channel.close()


class Unary:
    """A call for each observation, on one channel."""

    def __init__(self, port: int) -> None:
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self._call = self._channel.stream_unary("/bench/unary", policy_pb2.ClientMessage.SerializeToString)

    def ask(self, frames: tuple[Frame, ...]) -> None:
        said = self._call(iter(codec.encode_observation(observation(1, frames))))
        codec.decode_chunk(policy_pb2.ServerMessage.FromString(said), POLICY)

    def close(self) -> None:
        self._channel.close()


class Raw:
    """HTTP/1.1 with keep-alive and nothing but bytes in it."""

    def __init__(self, port: int) -> None:
        self._line = http.client.HTTPConnection("127.0.0.1", port)

    def ask(self, frames: tuple[Frame, ...]) -> None:
        body = b"".join([np.zeros(6, np.float32).tobytes(), *(frame.data for frame in frames)])
        self._line.request("POST", "/raw", body, {"Frames": ",".join(str(len(frame.data)) for frame in frames)})
        np.frombuffer(self._line.getresponse().read(), np.float32).reshape(50, 6)

    def close(self) -> None:
        self._line.close()


class Json(Raw):
    """What most REST servers for policies speak, with keep-alive."""

    def ask(self, frames: tuple[Frame, ...]) -> None:
        asked = {"state": [0.0] * 6, "frames": {f.camera: base64.b64encode(f.data).decode() for f in frames}}
        self._line.request("POST", "/json", json.dumps(asked).encode())
        np.array(json.loads(self._line.getresponse().read())["actions"], np.float32)


class JsonAnew(Json):
    """The same over a new connection each time, as a plain `requests.post` does it."""

    def ask(self, frames: tuple[Frame, ...]) -> None:
        super().ask(frames)
        self._line.close()  # the next request opens it again


WAYS: dict[str, tuple[type[Any], int]] = {
    "gRPC stream (ours)": (Stream, 0),
    "gRPC, a call each": (Unary, 0),
    "raw HTTP, keep-alive": (Raw, 1),
    "JSON + base64, keep-alive": (Json, 1),
    "JSON + base64, connections": (JsonAnew, 1),
}


# The bench.


@dataclass
class Taken:
    """Of one way: seconds of each round trip, CPU seconds of this process, bytes that went up and down."""

    seconds: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    up: int = 0
    down: int = 0


def race(ports: list[int], frames: tuple[Frame, ...], rounds: int, bytes_per_s: float = 0.0) -> dict[str, Taken]:
    """`rounds` blocks of each way in turns; with `bytes_per_s` behind a line of its own, whose bytes are counted."""
    taken = {name: Taken() for name in WAYS}
    with ExitStack() as stack:
        lines = {name: stack.enter_context(Line(ports[at], bytes_per_s)) for name, (_, at) in WAYS.items()}
        ways = {name: kind(lines[name].port if bytes_per_s else ports[at]) for name, (kind, at) in WAYS.items()}
        for number in range(rounds + 1):  # the first warms up
            for name, way in ways.items():
                block(way.ask, frames, taken[name] if number else Taken())
        for name, way in ways.items():
            way.close()
            taken[name].up, taken[name].down = lines[name].up, lines[name].down
    return taken


def block(ask: Callable[[tuple[Frame, ...]], None], frames: tuple[Frame, ...], taken: Taken) -> None:
    began_cpu_s = time.process_time()
    for _ in range(BLOCK):
        began_s = time.perf_counter()
        ask(frames)
        taken.seconds.append(time.perf_counter() - began_s)
    taken.cpu_s += time.process_time() - began_cpu_s


def show(what: str, direct: dict[str, Taken], slow: dict[str, Taken]) -> None:
    print(f"\n| {what} | p50 ms | p99 ms | client CPU ms | p50 ms at 100 Mbit/s | bytes up | bytes down |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, taken in direct.items():
        times, count = sorted(taken.seconds), len(slow[name].seconds) + BLOCK
        print(
            f"| {name} | {1e3 * statistics.median(times):.2f} | {1e3 * times[len(times) * 99 // 100]:.2f} "
            f"| {1e3 * taken.cpu_s / len(times):.2f} | {1e3 * statistics.median(slow[name].seconds):.2f} "
            f"| {slow[name].up / count:.0f} | {slow[name].down / count:.0f} |"
        )


@dataclass
class TransportConfig:
    """Round trips of the same observation and chunk, five ways."""

    quick: bool = False  # a fifth of the round trips
    serve: bool = False  # for this bench's own use: the server


def main(config: TransportConfig) -> None:
    if config.serve:
        serve()
        return
    scale = 1 if config.quick else 5
    command = [sys.executable, "-m", "scripts.benches.transport", "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        ports = json.loads(server.stdout.readline())
        for what, quality, rounds in (("two JPEG frames", 90, 10 * scale), ("two raw frames", 0, 2 * scale)):
            frames = pictures(quality)
            show(what, race(ports, frames, rounds), race(ports, frames, max(rounds // 5, 1), SLOW))


if __name__ == "__main__":
    start(TransportConfig, main)
