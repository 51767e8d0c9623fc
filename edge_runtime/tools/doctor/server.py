"""Is the policy server there, does its policy fit this robot, and how long does an answer take? Without torque."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np

from edge_runtime._realtime import Record
from edge_runtime.cameras import Camera, make_camera
from edge_runtime.config import NoRobotConfig, StartConfig, SyntheticCameraConfig
from edge_runtime.errors import (
    AccessError,
    ConfigError,
    DeviceError,
    EdgeRuntimeError,
    ModelError,
    ProtocolError,
    StreamError,
)
from edge_runtime.link.channel import Access
from edge_runtime.link.handshake import choose, introduce, squashes
from edge_runtime.link.local_server import LocalServer
from edge_runtime.link.stream import PolicyStream
from edge_runtime.planning.extra_state import NamedVector, make_vector
from edge_runtime.planning.planner import Planner, PlannerSettings
from edge_runtime.planning.sensors import Sensors
from edge_runtime.planning.task import Task
from edge_runtime.robots import Robot, make_robot
from edge_runtime.tools.doctor.finding import Finding, Group
from edge_runtime.wire.messages import Answer, Chunk, Failure, Hello, Policy

SERVER = Group("server")

PATIENCE_S = 2.0
ANSWER_S = 30.0
LOOKS = 5  # the first answer is often a slow one


@dataclass(frozen=True)
class Offer:
    """The policy that was met, and the way to it."""

    policy: Policy
    stream: PolicyStream


def meet(config: StartConfig, stack: ExitStack) -> Generator[Finding, None, Offer | None]:
    """Reach the server, or start our own for --bundle, and find the policy; None if that failed."""
    try:
        stream, where = _stream(config, stack)
        started_s = time.monotonic()
        description = stream.describe(threading.Event())
        took_s = time.monotonic() - started_s
    except EdgeRuntimeError as error:
        yield SERVER.failed("reachable", error, _how_to_reach(config, error))
        return None
    assert description is not None  # not cancelled
    yield SERVER.ok("reachable", f"{where}, policy-server {description.server_version}, in {took_s * 1e3:.0f} ms")
    try:
        policy = choose(description, config.model)
    except ProtocolError as error:
        yield SERVER.failed("policy", error, "--model=NAME, one that it offers; or the same version on both sides")
        return None
    yield SERVER.ok(
        "policy",
        f"{policy.name} ({policy.type}, {policy.digest.hex()[:12]}): {policy.chunk_size} actions at {policy.fps:g} Hz",
    )
    return Offer(policy, stream)


def compare(
    config: StartConfig, offer: Offer, robot: Robot | None, cameras: Mapping[str, Camera]
) -> Generator[Finding, None, tuple[Hello, Sensors] | None]:
    """Do names, units, shapes and rates fit? Returns what the robot would say and look at; None if they do not.

    An arm that is not there, and those of the configuration's cameras, count as right: the rest is compared all the
    same.
    """
    policy = offer.policy
    missing = [name for name in config.robot.cameras if name not in cameras]
    views = {
        config.rename_map.get(name, name): cameras.get(name) or _as_wanted(config.rename_map.get(name, name), policy)
        for name in config.robot.cameras
    }
    try:
        if robot is None:
            missing.append("the arm")
            robot = make_robot(NoRobotConfig(joints={joint.name: joint.unit for joint in policy.joints}))
        vectors = _vectors(config, policy)
        task = Task(config.task, config.task_file)
        hello = introduce(config, policy, robot, views, vectors, task.text())
    except EdgeRuntimeError as error:
        yield SERVER.failed("fits", error, _how_to_fit(error))
        return None
    parts = [f"{len(hello.joints)} joints", *(f"{c.name} {c.width}x{c.height}" for c in hello.cameras)]
    parts += [name.removeprefix("observation.") for name in vectors]
    but = f", as far as can be told without {' and '.join(missing)}" if missing else ""
    yield SERVER.ok("fits", f"{', '.join(parts)}, {config.fps:g} Hz: names, units and shapes are the policy's{but}")
    for said in squashes(policy, views):
        yield SERVER.warning("proportions", said, "export it for the cameras that there are, and leave --resize out")
    return hello, Sensors(policy, views, vectors, config.resize, config.max_frame_age_s, task)


def converse(config: StartConfig, offer: Offer, robot: Robot, hello: Hello, sensors: Sensors) -> Finding:
    """The handshake and a few observations of what is there now; nothing moves."""
    try:
        listener = _Listener(sensors, PlannerSettings.of(config), offer.stream)
        with _talking(offer.stream, hello, listener):
            listener.hear()  # the welcome
            for number in range(1, LOOKS + 1):
                _look(listener, robot, number)
    except EdgeRuntimeError as error:
        return SERVER.failed("handshake", error, _how_to_talk(error))
    rows, stages = listener.rows, listener.stages.summaries()
    trips, infer = stages["round_trip"], stages["infer"]
    said = (
        f"{rows} actions in {trips.p50 * 1e3:.0f} ms ({infer.p50 * 1e3:.0f} of them inference),"
        f" at most {trips.max * 1e3:.0f}, of {LOOKS} looks"
    )
    if trips.p50 * config.fps >= rows:
        lasts = f"a chunk lasts {rows / config.fps * 1e3:.0f} ms: the arm would stand still"
        return SERVER.warning("handshake", f"{said}; {lasts}", "a faster server, or more actions_per_chunk")
    return SERVER.ok("handshake", said)


class _Listener(Planner):
    """A planner that is waited for: `hear` returns once there was a welcome, or a chunk."""

    def __init__(self, sensors: Sensors, settings: PlannerSettings, stream: PolicyStream) -> None:
        super().__init__(sensors, settings, stream)
        self._heard: queue.SimpleQueue[EdgeRuntimeError | None] = queue.SimpleQueue()

    def connected(self, policy: Policy) -> None:
        super().connected(policy)
        self._heard.put(None)

    def answered(self, answer: Answer) -> None:
        super().answered(answer)
        if isinstance(answer, Chunk):
            self._heard.put(None)
        elif isinstance(answer, Failure):
            self._heard.put(ModelError(f"inference failed on the server: {answer.message} (id {answer.error_id})"))
        else:
            self._heard.put(ProtocolError(f"an observation that must go was skipped ({answer.reason})"))

    def ended(self, error: EdgeRuntimeError) -> None:
        self._heard.put(error)

    def hear(self) -> None:
        """Raises what ended the stream, or that nothing came."""
        try:
            error = self._heard.get(timeout=ANSWER_S)
        except queue.Empty:
            error = StreamError(f"no answer within {ANSWER_S:g} s")
        if error is not None:
            raise error


@contextmanager
def _talking(stream: PolicyStream, hello: Hello, listener: _Listener) -> Iterator[None]:
    """The stream is open in a thread of its own."""

    def run() -> None:
        try:
            stream.run(hello, listener)
        except EdgeRuntimeError as error:
            listener.ended(error)

    thread = threading.Thread(target=run, name="stream", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stream.stop()
        thread.join()


def _look(listener: _Listener, robot: Robot, number: int) -> None:
    """Send what is there now, and wait for its chunk."""
    positions = np.asarray(robot.read(), np.float32)
    ages_s = np.zeros(len(positions))
    record = Record(
        sequence=number,
        time_ns=time.monotonic_ns(),
        timestep=0,
        level=0,
        positions=positions,
        ages_s=ages_s,
        goal=positions,
        merges=0,
        paused=False,
    )
    listener.observe(record)
    if listener.counts["sent"] < number:
        reasons = [
            name.removeprefix("unsent_") for name, count in listener.counts.items() if "unsent" in name and count
        ]
        raise DeviceError(f"nothing could be sent: {', '.join(reasons) or 'the stream broke'}")
    listener.hear()


def _stream(config: StartConfig, stack: ExitStack) -> tuple[PolicyStream, str]:
    """Not open yet, and where it leads."""
    if config.bundle is None:
        access = Access(config.server_address, tls=config.tls, token_file=config.token_file, insecure=config.insecure)
        encrypted = " over TLS" if config.tls.ca else ""
        return PolicyStream(access, give_up_after_s=PATIENCE_S), f"{config.server_address}{encrypted}"
    exited = threading.Event()
    server = stack.enter_context(LocalServer(config, on_exit=exited.set))
    server.wait(exited)
    if exited.is_set():
        raise server.failure()
    return PolicyStream(Access(server.address), give_up_after_s=PATIENCE_S), f"a server of our own for {config.bundle}"


def _as_wanted(name: str, policy: Policy) -> Camera:
    """A camera of the shape that the policy takes, if it knows it."""
    shapes = {camera.name: (camera.height, camera.width) for camera in policy.cameras}
    height, width = shapes.get(name, (1, 1))
    return make_camera(name, SyntheticCameraConfig(width, height))


def _vectors(config: StartConfig, policy: Policy) -> dict[str, NamedVector]:
    """The extra state that the policy takes, by its names."""
    sources = {
        f"observation.{name.removeprefix('observation.')}": source for name, source in config.extra_state.items()
    }
    wanted = {vector.name for vector in policy.extra_state}
    return {name: make_vector(name, source) for name, source in sources.items() if name in wanted}


def _how_to_reach(config: StartConfig, error: EdgeRuntimeError) -> str:
    if config.bundle is not None:
        return f"see what it says: policy-server start {config.bundle}"
    if isinstance(error, AccessError | ConfigError):
        return "the certificates and the token as the server has them: tls.ca, tls.cert, tls.key, token_file"
    if "warming up" in str(error):
        return "wait until it says that it is serving"
    return f"on the server: policy-server start BUNDLE --listen={config.server_address}"


def _how_to_fit(error: EdgeRuntimeError) -> str:
    """Each difference names the flag that mends it, where one does."""
    other = "another policy: --model=NAME, or another robot"
    return f"the flags in brackets; or {other}" if "(--" in str(error) else other


def _how_to_talk(error: EdgeRuntimeError) -> str:
    if isinstance(error, AccessError):
        return "the token and the certificate as the server has them: token_file, tls.cert, tls.key"
    if isinstance(error, ModelError):
        return "the server's log has the same id"
    if isinstance(error, DeviceError):
        return "the cables of arm and cameras"
    return "the server's log says why; both sides of the same version"
