"""An honest robot in a process of its own: the real loop, planner and stream, at 30 Hz, until stdin closes.

`python -m tests.security.honest ADDRESS [FOLDER]` prints a line when its first chunk is merged, and at the end what it
lived through, as JSON. In FOLDER are its certificates and its token.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from edge_runtime._realtime import ActuatorLoop, PythonPort
from edge_runtime.config import TlsConfig
from edge_runtime.link.channel import Access
from edge_runtime.link.stream import PolicyStream
from edge_runtime.planning.planner import Planner, PlannerSettings
from edge_runtime.planning.sensors import Sensors
from edge_runtime.planning.task import Task
from edge_runtime.wire.messages import Floats, Hello, Pixels

FPS = 30.0


@dataclass
class Arm:
    """Is at once where it is told to be."""

    joints: list[float]

    def read(self) -> Sequence[float]:
        return self.joints

    def write(self, goals: Sequence[float]) -> None:
        self.joints = list(goals)


@dataclass(frozen=True)
class Frame:
    pixels: Pixels
    time_ns: int

    @property
    def since_ns(self) -> int:
        return self.time_ns


@dataclass(frozen=True)
class Camera:
    """Always has a frame of this moment."""

    height: int
    width: int

    def latest(self) -> Frame:
        return Frame(np.full((self.height, self.width, 3), 90, np.uint8), time.monotonic_ns())


@dataclass(frozen=True)
class Numbers:
    values: Floats = field(default_factory=lambda: np.zeros(2, np.float32))

    def read(self) -> Floats:
        return self.values


def access_to(address: str, folder: Path | None) -> Access:
    if folder is None:
        return Access(address)
    tls = TlsConfig(folder / "ca.crt", folder / "robot.crt", folder / "robot.key")
    return Access(address, tls=tls, token_file=folder / "token")


def run(access: Access) -> dict[str, float]:
    stream = PolicyStream(access)
    description = stream.describe(threading.Event())
    assert description is not None
    policy = description.policies[0]
    hello = Hello(policy.joints, policy.cameras, policy.extra_state, policy.fps, policy.name, policy.chunk_size)
    planner = Planner(
        Sensors(
            policy,
            {camera.name: Camera(camera.height, camera.width) for camera in policy.cameras},
            {vector.name: Numbers(np.zeros(vector.dimension, np.float32)) for vector in policy.extra_state},
            False,
            0.5,
            Task(""),
        ),
        PlannerSettings(fps=FPS, chunk_size_threshold=1 - 2 / policy.chunk_size),  # one with nearly every tick
        stream,
    )
    loop = ActuatorLoop(planner.ring, PythonPort(Arm([0.0] * len(policy.joints)), len(policy.joints)), fps=FPS)
    loop.prime([0.0] * len(policy.joints))
    over = threading.Event()

    def watch() -> None:
        seen = 0
        while not over.is_set():
            record = loop.wait(seen, 0.5)
            if record is not None:
                seen = record.sequence
                planner.observe(record)

    threads = [threading.Thread(target=work) for work in (loop.run, watch, lambda: stream.run(hello, planner))]
    for thread in threads:
        thread.start()
    seen = 0
    while planner.merges == 0:
        record = loop.wait(seen, 5.0)
        assert record is not None
        seen = record.sequence
    before = loop.counters()
    print("running", flush=True)
    sys.stdin.read()
    after = loop.counters()
    over.set()
    stream.stop()
    loop.stop()
    for thread in threads:
        thread.join()
    counts = planner.counts
    return {
        "ticks": after["ticks"] - before["ticks"],
        "starved": after["starved"] - before["starved"],
        "asked": counts["sent"],
        "chunks": counts["chunks_merged"],
        "failures": counts["failures"] + counts["lost"],
        "reconnects": stream.reconnects,
        "round_trip_p99_s": planner.stages.summaries()["round_trip"].p99,
    }


if __name__ == "__main__":
    print(json.dumps(run(access_to(sys.argv[1], Path(sys.argv[2]) if sys.argv[2:] else None))))
