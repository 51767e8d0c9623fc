"""The two sides: how each one's server and client are started, with the same robot, pictures, delay and rate."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from edge_runtime.link.uplink import BEST_QUALITY
from scripts.benches.vs_lerobot.diary import Diary
from scripts.benches.vs_lerobot.frames import VIEWS
from scripts.benches.vs_lerobot.motion import Motion
from scripts.benches.vs_lerobot.processes import Cpus, Program

ROWS = 50
QUALITY = BEST_QUALITY


@dataclass(frozen=True)
class Arm:
    """What one robot does and asks for; `picture` is the only one it sees, or -1."""

    motion: Motion = "moving"
    offset: float = 0.0
    picture: int = -1
    rows: int = ROWS
    aggregate: str = "weighted_average"
    jpeg: bool = True  # ours; LeRobot knows raw frames only


@dataclass(frozen=True)
class Place:
    """Where a run happens: a folder of its own for logs and results, the frames, and the processors."""

    folder: Path
    frames: Path
    robot: Cpus
    rest: Cpus


class Client:
    """A client at work; `diary` waits for its end. Raises RuntimeError for a client that left none."""

    def __init__(self, program: Program, out: Path) -> None:
        self._program, self._out = program, out

    def executes(self) -> None:
        """Returns with the first action."""
        self._program.wait_for("executing")

    def diary(self) -> Diary:
        code = self._program.wait()
        if not self._out.exists():
            raise RuntimeError(f"{self._program.name} ended with {code}; see its log")
        return Diary.load(self._out)


class Side(Protocol):
    """One of the two. `name` is its column in the table."""

    @property
    def name(self) -> str: ...

    def server(self, place: Place, port: int) -> Program:
        """On its way up: `serving` waits for it."""

    def notes(self, place: Place) -> dict[str, list[float]]:
        """What its server wrote down, once it has ended."""

    @contextmanager
    def client(self, place: Place, name: str, port: int, arm: Arm, seconds: float) -> Iterator[Client]:
        """A client that runs for `seconds` and a little more."""
        yield from ()


@dataclass(frozen=True)
class LeRobot:
    """LeRobot's server and client, by its own Python."""

    python: Path
    checkpoint: Path
    latency_s: float
    name: str = "LeRobot 0.6.1"

    def server(self, place: Place, port: int) -> Program:
        options = [f"--port={port}", f"--latency_s={self.latency_s}", f"--out={place.folder / 'lerobot-server.json'}"]
        return Program("lerobot-server", self._command("server", options), place.folder, place.rest)

    def notes(self, place: Place) -> dict[str, list[float]]:
        notes: dict[str, list[float]] = json.loads((place.folder / "lerobot-server.json").read_text())
        return notes

    @contextmanager
    def client(self, place: Place, name: str, port: int, arm: Arm, seconds: float) -> Iterator[Client]:
        out = place.folder / f"{name}.npz"
        out.unlink(missing_ok=True)
        options = [
            *(f"--address=127.0.0.1:{port}", f"--checkpoint={self.checkpoint}", f"--frames={place.frames}"),
            *(f"--motion={arm.motion}", f"--offset={arm.offset}", f"--picture={arm.picture}", f"--rows={arm.rows}"),
            *(f"--aggregate={arm.aggregate}", f"--seconds={seconds}", f"--out={out}"),
        ]
        with Program(name, self._command("client", options), place.folder, place.robot) as program:
            yield Client(program, out)

    def merges_s(self, place: Place, executed: int, repeats: int) -> list[float]:
        """Seconds of each of its merges, alone, with so many steps `executed` between two of them."""
        options = [f"--executed={executed}", f"--repeats={repeats}", f"--frames={place.frames}"]
        with Program("lerobot-merge", self._command("merge", options), place.folder, place.rest) as program:
            times: list[float] = json.loads(program.wait_for("["))
            return times

    def _command(self, role: str, options: Sequence[str]) -> list[str]:
        return [str(self.python), "-m", "scripts.benches.vs_lerobot.lerobot_driver", role, *options]


@dataclass(frozen=True)
class Edge:
    """policy-server and edge-runtime with an SO-101 on a virtual bus; `realtime` as its flag."""

    bundle: Path
    latency_s: float
    realtime: str = "try"
    name: str = "edge-runtime"

    def server(self, place: Place, port: int) -> Program:
        command = [
            *(sys.executable, "-m", "policy_server", "start", str(self.bundle), f"--listen=127.0.0.1:{port}"),
            f"--inject_latency_ms={1e3 * self.latency_s:g}",
        ]
        return Program("edge-server", command, place.folder, place.rest)

    def notes(self, place: Place) -> dict[str, list[float]]:
        return {}  # the server's times come with each chunk

    @contextmanager
    def client(self, place: Place, name: str, port: int, arm: Arm, seconds: float) -> Iterator[Client]:
        from edge_runtime.virtual_arm.calibration import write_calibration

        write_calibration(place.folder, "versus")
        out = place.folder / f"{name}.npz"
        out.unlink(missing_ok=True)
        servos = [sys.executable, "-m", "scripts.benches.vs_lerobot.servos", arm.motion, str(arm.offset)]
        with Program(f"{name}-servos", servos, place.folder, place.rest) as bus:
            settings: dict[str, Any] = {
                "robot.type": "so101_follower",
                "robot.port": bus.wait_for("/dev/"),
                "robot.id": "versus",
                "robot.calibration_dir": place.folder,
                "robot.cameras": json.dumps(
                    {v: {"type": "recorded", "folder": str(place.frames), "picture": arm.picture} for v in VIEWS}
                ),
                "robot.max_speed": 0,  # LeRobot's client has no such limit, nor the next
                "robot.max_acceleration": 0,
                "server_address": f"127.0.0.1:{port}",
                "actions_per_chunk": arm.rows,
                "aggregate_fn_name": arm.aggregate,
                "jpeg_quality": QUALITY if arm.jpeg else 0,
                "realtime": json.dumps(self.realtime),  # in quotes: off is a boolean in YAML
                "duration_s": seconds + 2,
            }
            command = [sys.executable, "-m", "scripts.benches.vs_lerobot.edge_driver", str(out)]
            command += [f"--{setting}={value}" for setting, value in settings.items()]
            with Program(name, command, place.folder, place.robot) as program:
                yield Client(program, out)

    def merges_s(self, place: Place, executed: int, repeats: int) -> list[float]:
        """As LeRobot's."""
        import time

        import numpy as np

        from edge_runtime._realtime import ActionRing

        chunk = np.random.default_rng(0).normal(0, 40, (ROWS, 6)).astype(np.float32)
        ring, out, times = ActionRing(2 * ROWS, 6), np.empty(6, np.float32), []
        for turn in range(repeats):
            began_s = time.perf_counter()
            ring.merge(turn * executed, chunk, 0)
            times.append(time.perf_counter() - began_s)
            for _ in range(executed):
                ring.pick(out)
        return times
