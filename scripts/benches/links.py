"""Two cameras of 640x480 on lines of 1, 5 and 20 Mbit/s, by the kernel's token bucket between two network namespaces.

    python -m scripts.benches.links             # 60 s a line
    python -m scripts.benches.links --quick     # 15 s a line

Prints chunks a minute, the longest wait for one, reconnects, uploads on the line at once and starved ticks.
"""

from __future__ import annotations

import csv
import json
import math
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from scripts.rig.bench import reach, start
from scripts.rig.bundles import JOINTS, write_bundle
from scripts.rig.program import Edge, Server
from tests.faults.cable import Cable, laid, missing_capabilities

LINES = (1, 5, 20)  # Mbit/s
CAMERAS = ("front", "wrist")
FPS = 30
OFTEN_S = 2.0  # a chunk at least, at 1 Mbit/s
SKIPPED = 77
LEAST_UPLOAD = 4096  # bytes in flight; less is a ping or an acknowledgement


@dataclass
class LinksConfig:
    """What a slow line does to a robot with two cameras."""

    seconds: float = 60.0  # on each line
    quick: bool = False  # 15 s on each line
    chunk: int = 50  # rows of the policy's chunks, at 30 Hz


def main(config: LinksConfig) -> int:
    missing = missing_capabilities()
    if missing:
        print(f"network namespaces need {' and '.join(missing)}")
        return SKIPPED
    seconds = 15.0 if config.quick else config.seconds
    print(f"2 cameras of 640x480, JPEG quality auto; chunks of {config.chunk} rows at 30 Hz")
    print(" Mbit/s  chunks/min  longest wait  reconnects  uploads at once  starved ticks  quality")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="links-")))
        bundle = write_bundle(folder / "wide", cameras=[(name, 480, 640) for name in CAMERAS], chunk=config.chunk)
        cable = stack.enter_context(laid())
        flags = (str(bundle), "--insecure=true", "--threads=1")
        server = stack.enter_context(
            cable.server.hosting(lambda: Server(folder, *flags, listen=f"{cable.server.address}:0"))
        )
        for megabits in LINES:
            with cable.slow(megabits):
                run(cable, server.address, folder, megabits, seconds)
    return 0


def run(cable: Cable, address: str, folder: Path, megabits: int, seconds: float) -> None:
    summary, levels = folder / f"{megabits}.json", folder / f"{megabits}.csv"
    camera = {"type": "synthetic", "height": 480, "width": 640, "fps": FPS}
    flags = [
        "--robot.type=none",
        f"--robot.joints={json.dumps(dict.fromkeys(JOINTS, 'degrees'))}",
        f"--robot.cameras={json.dumps(dict.fromkeys(CAMERAS, camera))}",
        *(f"--server_address={address}", "--insecure=true", "--similarity_tolerance=0", f"--fps={FPS}"),
        *(f"--duration_s={seconds}", f"--summary={summary}", f"--queue_log={levels}", "--realtime=off"),
    ]
    most = 0
    with cable.robot.hosting(lambda: Edge(folder, *flags)) as edge:
        while edge.process.poll() is None:
            most = max(most, uploads(cable))
            time.sleep(0.05)
        edge.finish()
    report = json.loads(summary.read_text())
    waits = gaps(levels)
    chunks, quality = report["chunks"]["merged"], report["jpeg_quality"]
    print(
        f"{megabits:7d} {chunks * 60 / seconds:11.0f} {max(waits):11.2f} s {report['reconnects']:11d} {most:16d}"
        f" {report['loop']['starved']:14d} {quality:8d}"
    )
    reach(f"{megabits} Mbit/s: reconnects {report['reconnects']}, expected 0", report["reconnects"] == 0)
    reach(f"{megabits} Mbit/s: uploads on the line at once {most}, expected at most 1", most <= 1)
    if megabits == LINES[0]:
        longest_s = max(waits)
        reach(f"1 Mbit/s: a chunk at least every {longest_s:.2f} s, expected {OFTEN_S:g} s", longest_s <= OFTEN_S)


def uploads(cable: Cable) -> int:
    """Connections of the robot, closed ones included, that have bytes on their way (`ss`: Send-Q)."""
    rows = cable.robot.run("ss", "-Htn", "state", "all").splitlines()
    return sum(int(row.split()[2]) > LEAST_UPLOAD for row in rows if not row.startswith("LISTEN"))


def gaps(levels: Path) -> list[float]:
    """Seconds between chunks, by the times at which the queue's level rose."""
    with levels.open(newline="") as file:
        rows = [(float(row["time_s"]), int(row["level"])) for row in csv.DictReader(file)]
    rises = [later[0] for earlier, later in pairwise(rows) if later[1] > earlier[1]]
    return [later - earlier for earlier, later in pairwise(rises)] or [math.inf]


if __name__ == "__main__":
    start(LinksConfig, main)
