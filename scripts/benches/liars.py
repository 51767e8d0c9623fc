"""An honest robot beside eight that lie about their urgency, or send the costliest pictures: its round trip.

python -m scripts.benches.liars            as root: each address is a network namespace of its own

All ask again at once, always `must_go`, always run dry. The engine takes 20 ms for a batch: of one observation beside
the liars; of eight, the default, beside the eight with pictures (noise of quality 100), who have an address each. With
batches of one, nine addresses that ask without end have a ninth of the engine each, whatever their pictures cost.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from edge_runtime.errors import AccessError
from edge_runtime.wire.messages import Chunk, Frame
from policy_server import bundle
from scripts.rig.bench import reach, start
from scripts.rig.bundles import write_bundle
from scripts.rig.robots import Robot, hello_to, look

ALLOWED = 3.0  # times the round trip alone, p95
SIDE = (480, 640)
ELSEWHERE = 10  # niceness of the others: they stand for machines of their own, and leave this one to the server


@dataclass
class BenchConfig:
    """`scripts.benches.liars`."""

    seconds: float = 10.0  # of each measurement
    quick: bool = False
    role: str = ""  # for this script's own use: honest, liar or painter
    address: str = ""
    bundle: str = ""


def ask(config: BenchConfig) -> None:
    """A robot that asks in turn until its time is over or stdin closes; prints the p95 of its round trips in ms."""
    policy = bundle.load(Path(config.bundle)).policy
    chance = np.random.default_rng(1)
    pixels = chance.integers(0, 256, (*SIDE, 3), np.uint8)
    quality = 100
    if config.role != "painter":
        pixels, quality = np.full((*SIDE, 3), 90, np.uint8), 93
    if config.role != "honest":
        os.nice(ELSEWHERE)
    data = bytes(cv2.imencode(".jpg", pixels, (cv2.IMWRITE_JPEG_QUALITY, quality))[1])
    frames = (Frame("front", *SIDE, "jpeg", data),)
    lies: dict[str, Any] = {} if config.role == "honest" else {"must_go": True, "runs_dry_in_s": 0.0}
    if config.role == "honest":
        lies = {"runs_dry_in_s": 1.0}
    took = []
    with Robot(config.address, hello_to(policy), timeout_s=600) as robot:
        robot.welcomed()
        print("in", flush=True)
        end_s = time.monotonic() + config.seconds
        number = 0
        while time.monotonic() < end_s:
            number += 1
            began_s = time.monotonic()
            answer = robot.ask(look(number, timestep=number, frames=frames, **lies))
            while not isinstance(answer, Chunk):  # a busy server says its pace, too
                answer = robot.receive()
            took.append(time.monotonic() - began_s)
            if config.role == "honest":
                time.sleep(0.033)
    print(statistics.quantiles(took, n=20)[18] * 1e3, flush=True)


@contextmanager
def namespaces(count: int) -> Iterator[list[str]]:
    """So many, numbered; the one of number 0 is 10.77.i.1 to each other, which is 10.77.i.2."""
    names = [f"liars{os.getpid()}-{number}" for number in range(count)]

    def ip(words: str) -> None:
        subprocess.run(["ip", *words.split()], check=True)

    with ExitStack() as stack:
        for name in names:
            ip(f"netns add {name}")
            stack.callback(ip, f"netns del {name}")
            ip(f"-n {name} link set lo up")
        for number, name in enumerate(names[1:], start=1):
            ip(f"-n {names[0]} link add v{number} type veth peer name e0 netns {name}")
            for space, device, last in ((names[0], f"v{number}", 1), (name, "e0", 2)):
                ip(f"-n {space} addr add 10.77.{number}.{last}/24 dev {device}")
                ip(f"-n {space} link set {device} up")
        yield names


def child(stack: ExitStack, space: str, *words: str, **pipes: Any) -> subprocess.Popen[str]:
    command = ["ip", "netns", "exec", space, sys.executable, "-m", *words]
    process = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, **pipes)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def measure(
    config: BenchConfig, names: list[str], path: Path, batch: int, role: str = "", spaces: tuple[int, ...] = ()
) -> float:
    """The honest robot's p95, ms, beside one of `role` for each of `spaces`."""
    with ExitStack() as stack:
        settings = (
            "--listen=0.0.0.0:7070",
            "--insecure=true",
            "--providers=cpu",
            "--threads=1",
            f"--max_batch={batch}",
        )
        more = ("--inject_latency_ms=20", "--until_stdin_closes=true")
        server = child(stack, names[0], "policy_server", "start", str(path), *settings, *more, stderr=subprocess.PIPE)
        assert server.stderr is not None
        next(line for line in server.stderr if "serving [" in line)

        def robot(space: int, role: str, seconds: float) -> subprocess.Popen[str]:
            words = (f"--role={role}", f"--address=10.77.{space}.1:7070", f"--bundle={path}", f"--seconds={seconds}")
            return child(stack, names[space], "scripts.benches.liars", *words, stdout=subprocess.PIPE)

        for other in [robot(space, role, 600.0) for space in spaces]:
            assert other.stdout is not None
            assert other.stdout.readline() == "in\n"
        honest = robot(1, "honest", config.seconds)
        assert honest.stdout is not None
        assert honest.stdout.readline() == "in\n"
        return float(honest.stdout.readline())


def main(config: BenchConfig) -> None:
    if config.role:
        ask(config)
        return
    if os.geteuid() != 0:
        raise AccessError("liars: network namespaces need root")
    config.seconds = 4.0 if config.quick else config.seconds
    with tempfile.TemporaryDirectory(prefix="liars-") as folder, namespaces(10) as names:
        path = write_bundle(Path(folder) / "tiny", cameras=[("front", *SIDE)])
        for what, batch, role, spaces in (
            ("eight liars of one address", 1, "liar", (2,) * 8),
            ("eight peers with the worst legal pictures", 8, "painter", tuple(range(2, 10))),
        ):
            alone = measure(config, names, path, batch)
            beside = measure(config, names, path, batch, role, spaces)
            ratio = beside / alone
            said = f"p95 beside {what}: {beside:.0f} ms, alone {alone:.0f} ms, {ratio:.1f} x of {ALLOWED:g} x allowed"
            reach(said, ratio <= ALLOWED)


if __name__ == "__main__":
    start(BenchConfig, main)
