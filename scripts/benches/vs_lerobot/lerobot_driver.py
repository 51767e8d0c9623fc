"""LeRobot's side of the comparison, run by the Python that has LeRobot 0.6.1: its own classes, and a robot for them.

python -m scripts.benches.vs_lerobot.lerobot_driver server --port=P --latency_s=0.2 --out=FILE   # its PolicyServer
python -m scripts.benches.vs_lerobot.lerobot_driver client --address=HOST:P …    # LeRobot's RobotClient
python -m scripts.benches.vs_lerobot.lerobot_driver merge --repeats=2000    # its merge alone

PolicyServer and RobotClient are used as they are: the subclasses here only write down when their methods were called,
and `SyntheticRobot` is a robot whose joints and pictures come from memory. LeRobot writes logs into the working folder.
"""

from __future__ import annotations

import json
import logging
import re
import signal
import sys
import threading
import time
from collections import defaultdict
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from queue import Queue, SimpleQueue
from typing import Any, Literal

import grpc
import torch
from lerobot.async_inference import robot_client
from lerobot.async_inference.configs import PolicyServerConfig, RobotClientConfig
from lerobot.async_inference.helpers import TimedAction
from lerobot.async_inference.policy_server import PolicyServer
from lerobot.robots import Robot, RobotConfig
from lerobot.transport import services_pb2_grpc

from scripts.benches.vs_lerobot import diary, motion
from scripts.benches.vs_lerobot.frames import VIEWS, Reel
from scripts.rig.bench import start

ROWS, FPS = 50, 30


@dataclass
class DriverConfig:
    """One of LeRobot's programs, as the bench asks for it."""

    role: Literal["server", "client", "merge"]
    out: Path = Path("out")
    port: int = 0
    latency_s: float = 0.0
    address: str = "127.0.0.1:1"
    checkpoint: Path = Path("none")
    frames: Path = Path()
    motion: Literal["moving", "still"] = "moving"
    offset: float = 0.0
    picture: int = -1
    rows: int = ROWS
    aggregate: str = "weighted_average"
    seconds: float = 10.0
    patience_s: float = 30.0
    executed: int = ROWS // 2
    repeats: int = 2000


@RobotConfig.register_subclass("synthetic")
@dataclass(kw_only=True)
class SyntheticRobotConfig(RobotConfig):
    frames: Path = Path()
    motion: motion.Motion = "moving"
    offset: float = 0.0
    picture: int = -1


class SyntheticRobot(Robot):
    """Six joints in degrees and two cameras, all of which cost nothing: no bus, no camera thread, no copies."""

    config_class = SyntheticRobotConfig
    name = "synthetic"

    def __init__(self, config: SyntheticRobotConfig) -> None:
        super().__init__(config)
        self._config = config
        self._reels = {view: Reel(config.frames, view, config.picture) for view in VIEWS}
        self.sent: list[tuple[int, list[float]]] = []  # when, and what
        self.first = threading.Event()

    @property
    def observation_features(self) -> dict[str, Any]:
        return {**self.action_features, **{view: reel.shape for view, reel in self._reels.items()}}

    @property
    def action_features(self) -> dict[str, Any]:
        return {f"{joint}.pos": float for joint in motion.JOINTS}

    def get_observation(self) -> dict[str, Any]:
        now_s = time.monotonic()
        where = motion.positions(self._config.motion, now_s, self._config.offset).tolist()
        pictures = {view: reel.at(now_s) for view, reel in self._reels.items()}
        return {**dict(zip(self.action_features, where, strict=True)), **pictures}

    def send_action(self, action: dict[str, Any]) -> dict[str, Any]:
        self.sent.append((time.monotonic_ns(), list(action.values())))
        self.first.set()
        return action

    is_connected = True
    is_calibrated = True

    def connect(self, calibrate: bool = True) -> None: ...
    def calibrate(self) -> None: ...
    def configure(self) -> None: ...
    def disconnect(self) -> None: ...


class NotedClient(robot_client.RobotClient):
    """RobotClient with a pencil."""

    def __init__(self, config: RobotClientConfig) -> None:
        self.turns: list[list[Any]] = []  # began_ns, timestep, level
        self.merge_s: list[float] = []
        self.chunk_rows: list[int] = []
        self.observations = 0
        super().__init__(config)

    def actions_available(self) -> bool:
        self.turns.append([time.monotonic_ns(), -1, self.action_queue.qsize()])
        return super().actions_available()

    def control_loop_action(self, verbose: bool = False) -> dict[str, Any]:
        done = super().control_loop_action(verbose)
        self.turns[-1][1] = self.latest_action
        return done

    def send_observation(self, obs: Any) -> bool:
        self.observations += 1
        return super().send_observation(obs)

    def _aggregate_action_queues(self, incoming_actions: list[TimedAction], aggregate_fn: Any = None) -> None:
        began_s = time.perf_counter()
        super()._aggregate_action_queues(incoming_actions, aggregate_fn)
        self.merge_s.append(time.perf_counter() - began_s)
        self.chunk_rows.append(len(incoming_actions))


class NotedServer(PolicyServer):
    """PolicyServer with a pencil: durations of each part of its work, sizes of what it is sent and sends."""

    def __init__(self, config: PolicyServerConfig) -> None:
        super().__init__(config)
        self.notes: dict[str, list[float]] = defaultdict(list)
        self.logger.addHandler(_Reader(self.notes))

    def _get_action_chunk(self, observation: Any) -> torch.Tensor:
        began_s = time.perf_counter()
        chunk = super()._get_action_chunk(observation)
        self.notes["forward"].append(time.perf_counter() - began_s)
        return chunk

    def _predict_action_chunk(self, observation_t: Any) -> list[TimedAction]:
        began_s = time.perf_counter()
        chunk = super()._predict_action_chunk(observation_t)
        self.notes["predict"].append(time.perf_counter() - began_s)
        return chunk

    def SendObservations(self, request_iterator: Any, context: Any) -> Any:
        sizes: list[int] = []

        def counted() -> Any:
            for message in request_iterator:
                sizes.append(message.ByteSize())
                yield message

        answer = super().SendObservations(counted(), context)
        self.notes["observation_bytes"].append(sum(sizes))
        return answer

    def GetActions(self, request: Any, context: Any) -> Any:
        answer = super().GetActions(request, context)
        if answer.ByteSize():
            self.notes["chunk_bytes"].append(answer.ByteSize())
        return answer


class _Reader(logging.Handler):
    """Takes from LeRobot's own log lines the times that no method of it has for itself."""

    _WANTED = (
        ("deserialise", re.compile(r"Deserialization time: ([\d.]+)s"), 1.0),
        ("respond", re.compile(r"Action chunk #\d+ generated \| Total time: ([\d.]+)ms"), 1e-3),
    )

    def __init__(self, notes: dict[str, list[float]]) -> None:
        super().__init__(logging.DEBUG)
        self._notes = notes

    def emit(self, record: logging.LogRecord) -> None:
        for name, pattern, unit in self._WANTED:
            if found := pattern.search(record.getMessage()):
                self._notes[name].append(float(found[1]) * unit)


def serve(options: DriverConfig) -> None:
    """As `lerobot.async_inference.policy_server.serve` does it; until SIGTERM, then writes its notes."""
    service = NotedServer(
        PolicyServerConfig(host="127.0.0.1", port=options.port, fps=FPS, inference_latency=options.latency_s)
    )
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    services_pb2_grpc.add_AsyncInferenceServicer_to_server(service, server)
    server.add_insecure_port(f"127.0.0.1:{options.port}")
    ended: SimpleQueue[None] = SimpleQueue()  # unlike an event's, its lock may be held when the handler runs
    signal.signal(signal.SIGTERM, lambda *_: ended.put(None))
    server.start()
    print("serving", flush=True)
    ended.get()
    options.out.write_text(json.dumps(service.notes))


def drive(options: DriverConfig) -> None:
    """As `lerobot.async_inference.robot_client.async_client` does it, for `seconds` after the first action."""
    client = NotedClient(_client_config(options))
    if not client.start():
        sys.exit("LeRobot's client did not start")
    receiver = threading.Thread(target=client.receive_actions, daemon=True)
    receiver.start()
    robot: Any = client.robot
    began: list[tuple[diary.Usage, float]] = []

    def end_in_time() -> None:
        if robot.first.wait(options.patience_s):
            print("executing", flush=True)
            began.append((diary.Usage.now(), time.monotonic()))
            threading.Event().wait(options.seconds)
        client.shutdown_event.set()

    threading.Thread(target=end_in_time, daemon=True).start()
    crashed = ""
    try:
        client.control_loop(task="")
    except Exception as error:  # whatever its loop dies of is a finding
        crashed = f"{type(error).__name__}: {error}"
    sent = iter(robot.sent)
    turns, goal = [], [float("nan")] * len(motion.JOINTS)
    for began_ns, timestep, level in client.turns:
        sent_ns, goal = next(sent) if timestep >= 0 else (began_ns, goal)
        turns.append(diary.Turn(began_ns, sent_ns, timestep, level, goal))
    usage, began_s = began[0] if began else (diary.Usage.now(), time.monotonic() - options.seconds)
    diary.write(
        options.out,
        turns,
        usage,
        began_s,
        time.monotonic(),
        crashed=crashed,
        observations=client.observations,
        chunks=len(client.chunk_rows),
        chunk_rows=client.chunk_rows,
        merge_s=client.merge_s,
    )


def merge(options: DriverConfig) -> None:
    """Seconds of each merge, `executed` steps after the one before, as JSON."""
    client = robot_client.RobotClient(_client_config(options))
    chunk = torch.randn(ROWS, len(motion.JOINTS))
    times = []
    for turn in range(options.repeats):
        first = turn * options.executed
        incoming = [TimedAction(0.0, first + i, row.clone()) for i, row in enumerate(chunk)]
        began_s = time.perf_counter()
        client._aggregate_action_queues(incoming, client.config.aggregate_fn)
        times.append(time.perf_counter() - began_s)
        for _ in range(options.executed):
            client.latest_action = client.action_queue.get_nowait().get_timestep()
    assert isinstance(client.action_queue, Queue)
    print(json.dumps(times))


def _client_config(options: DriverConfig) -> RobotClientConfig:
    robot = SyntheticRobotConfig(
        id="versus",
        calibration_dir=Path.cwd(),
        frames=options.frames,
        motion=options.motion,
        offset=options.offset,
        picture=options.picture,
    )
    return RobotClientConfig(
        policy_type="act",
        pretrained_name_or_path=str(options.checkpoint),
        robot=robot,
        actions_per_chunk=options.rows,
        server_address=options.address,
        fps=FPS,
        aggregate_fn_name=options.aggregate,
    )


def main(options: DriverConfig) -> None:
    {"server": serve, "client": drive, "merge": merge}[options.role](options)


if __name__ == "__main__":
    start(DriverConfig, main, positional="role")
