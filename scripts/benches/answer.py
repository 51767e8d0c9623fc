"""What the policy server adds to a forward pass: last piece received to answer sent, minus the inference, on loopback.

python -m scripts.benches.answer                  # 300 answers a row
python -m scripts.benches.answer --quick
python -m scripts.benches.answer --export_python=.venv-export/bin/python

At 2x480x640 the policy is the default ACT with random weights where --export_python can make one (90 s),
else a graph of the same inputs and outputs that only averages its frames: what is measured is not the graph's.
Two figures a row. The server's own is the sum of its stages; what the robot saw runs from its last piece to its answer
in hand, both ways through gRPC, on processors that the robot shares.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np

from edge_runtime.cameras.synthetic import SyntheticCamera
from edge_runtime.config import SyntheticCameraConfig
from edge_runtime.link.uplink import BEST_QUALITY
from edge_runtime.wire.frames import compress
from edge_runtime.wire.messages import Chunk, Frame, Observation, Pace, Policy
from policy_server import bundle
from scripts.rig.bench import reach, start
from scripts.rig.bundles import write_bundle
from scripts.rig.program import Server
from scripts.rig.robots import Robot, hello_to

OURS = ("admit", "wait", "prepare", "finish")  # all of the server's stages but the inference, once all pieces are there
WARM_UP = 10
VIEWS = ("front", "wrist")
QUALITY = BEST_QUALITY


@dataclass(frozen=True)
class Row:
    what: str
    bundle: Path
    quality: int  # of the JPEGs; 0 = raw frames
    reach_ms: float


@dataclass
class AnswerConfig:
    """What the server adds to a forward pass, two policies."""

    quick: bool = False  # 50 answers a row, not 300
    export_python: Path | None = None  # of an environment with edge-runtime[export]


def main(config: AnswerConfig) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-answer-") as work:
        rows = [
            Row("2x96x96 raw, act_so101_cubes", bundle.locate("act_so101_cubes"), 0, 2.0),
            large(Path(work), config.export_python),
        ]
        for row in rows:
            measure(row, Path(work), 50 if config.quick else 300)


def large(folder: Path, python: Path | None) -> Row:
    """The row of 480x640; says in its name what computes."""
    if python is None:
        path = write_bundle(folder / "averages", cameras=[(view, 480, 640) for view in VIEWS], chunk=100)
        return Row(f"2x480x640 JPEG {QUALITY}, a graph that averages", path, QUALITY, 5.0)
    source, path = folder / "checkpoint", folder / "act_random"
    subprocess.run([python, "-m", "scripts.rig.random_checkpoint", "--kind=act", f"--folder={source}"], check=True)
    stated = [f"--output={path}", "--robot.type=so101_follower", "--fps=30"]
    subprocess.run(
        [python, "-m", "policy_server.export.cli", str(source), *stated], check=True, stdout=subprocess.DEVNULL
    )
    return Row(f"2x480x640 JPEG {QUALITY}, ACT with random weights", path, QUALITY, 5.0)


def measure(row: Row, folder: Path, answers: int) -> None:
    """Ask `answers` times, one after the other, and print the row."""
    policy = bundle.load(row.bundle).policy
    ours, infer, seen = [], [], []
    with Server(folder, str(row.bundle)) as server, Robot(server.address, hello_to(policy), timeout_s=3600) as robot:
        robot.welcomed()
        for number, frames in zip(range(WARM_UP + answers), cycle(pictures(policy, row.quality)), strict=False):
            state = np.random.default_rng(number).uniform(-60, 60, len(policy.joints)).astype(np.float32)
            robot.send(Observation(number + 1, 1, number, True, state, frames=frames))
            sent_s = time.perf_counter()
            while isinstance(answer := robot.receive(), Pace):
                pass  # asked as fast as it answers, a large policy says that it cannot keep up
            if not isinstance(answer, Chunk):
                raise SystemExit(f"{row.what}: answered {answer}")
            if number >= WARM_UP:
                seen.append(time.perf_counter() - sent_s - answer.times.infer)
                infer.append(answer.times.infer)
                ours.append([getattr(answer.times, stage) for stage in OURS])
    stages = np.median(np.array(ours) * 1e3, axis=0)
    p50, p95 = np.percentile(np.sum(ours, axis=1) * 1e3, [50, 95])
    parts = ", ".join(f"{stage} {ms:.2f}" for stage, ms in zip(OURS, stages, strict=True))
    reach(
        f"{row.what}: p50 {p50:.2f} ms (reach {row.reach_ms:g}), p95 {p95:.2f} ({parts}); as the robot saw it p50 "
        f"{np.median(seen) * 1e3:.2f} ms; infer {np.median(infer) * 1e3:.1f} ms, n {answers}",
        bool(p50 <= row.reach_ms),
    )


def pictures(policy: Policy, quality: int) -> list[tuple[Frame, ...]]:
    """A few sets of frames with the detail of a desk, ready to send."""
    sets = []
    for number in range(4):
        frames = []
        for camera in policy.cameras:
            source = SyntheticCamera(camera.name, SyntheticCameraConfig(camera.width, camera.height, 30))
            source.open()
            picture = source.latest()
            assert picture is not None
            frame = Frame.raw(camera.name, np.roll(picture.pixels, 8 * number, axis=1))
            frames.append(compress(frame, quality) if quality else frame)
        sets.append(tuple(frames))
    return sets


if __name__ == "__main__":
    start(AnswerConfig, main)
