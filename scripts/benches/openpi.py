"""What an openpi server that stops answering does to the robot's loop. Needs the extra `openpi` and its client.

.venv-extras/bin/python -m scripts.benches.openpi             # made by make test-extras
.venv-extras/bin/python -m scripts.benches.openpi --quick

A robot without hardware, our policy server and a stand-in for openpi's, each a process. The loop's lateness while the
upstream answers, and in a run of the same length in which it is blocked soon after the start; both in turns.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scripts.rig.bench import reach, start
from scripts.rig.program import Edge, Server

SKIPPED = 77
FPS = 100
JOINTS = 6
ALLOWED = 1.5  # times the p99 of the runs in which it answers, or less than PRACTICALLY_NOTHING_MS more
PRACTICALLY_NOTHING_MS = 0.5


@dataclass
class OpenpiConfig:
    """A blocked upstream beside one that answers."""

    quick: bool = False
    runs: int = 5  # of each kind, in turns
    seconds: float = 20.0  # of each


def main(config: OpenpiConfig) -> int:
    if find_spec("openpi_client") is None or find_spec("msgpack") is None:
        print(
            "openpi-client is not installed: make test-extras, then .venv-extras/bin/python -m scripts.benches.openpi"
        )
        return SKIPPED
    runs, seconds = (2, 8.0) if config.quick else (config.runs, config.seconds)
    late: dict[bool, list[float]] = {False: [], True: []}
    failures: list[int] = []
    missed: dict[bool, int] = {False: 0, True: 0}
    with tempfile.TemporaryDirectory(prefix="bench-openpi-") as folder:
        for _ in range(runs):
            for blocked in (False, True):
                report, failed = run(Path(folder), seconds, blocked)
                late[blocked].append(report["lateness_s"]["p99"] * 1e3)
                missed[blocked] += report["loop"]["missed"]
                failures += [failed] if blocked else []
    answers, silent = statistics.median(late[False]), statistics.median(late[True])
    spread = f"{min(late[True]):.3f}..{max(late[True]):.3f}, {min(late[False]):.3f}..{max(late[False]):.3f}"
    reach(
        f"lateness p99 at {FPS} Hz, blocked {silent:.3f} ms, answering {answers:.3f} ms, {silent / answers:.2f} x "
        f"(reach {ALLOWED:g} x, or {PRACTICALLY_NOTHING_MS:g} ms more; {spread}; n {runs} runs each)",
        silent <= max(ALLOWED * answers, answers + PRACTICALLY_NOTHING_MS),
    )
    reach(
        f"missed ticks, blocked {missed[True]}, answering {missed[False]} (reach no more than 1 a run beyond those)",
        missed[True] <= missed[False] + runs,
    )
    reach(f"failures that the robot heard in a blocked run: {failures} (reach 1 in each)", min(failures) >= 1)
    return 0


def run(folder: Path, seconds: float, blocked: bool) -> tuple[dict[str, Any], int]:
    """The edge's summary, and how many failures it logged."""
    joints = {f"j{number}.pos": "degrees" for number in range(1, JOINTS + 1)}
    layout, summary = folder / "map.yaml", folder / "summary.json"
    layout.write_text(
        f"observation: {{state: observation.state}}\njoints: {json.dumps(joints)}\nchunk_size: 50\nfps: {FPS}\n"
    )
    upstream = subprocess.Popen(
        [sys.executable, "-m", "scripts.rig.openpi_server", f"--joints={JOINTS}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert upstream.stdin is not None
    assert upstream.stdout is not None
    try:
        address = f"openpi://127.0.0.1:{int(upstream.stdout.readline())}"
        with Server(folder, address, f"--map={layout}", "--openpi.answer_s=1", "--threads=1") as server:
            flags = [
                *("--robot.type=none", f"--robot.joints={json.dumps(joints)}", f"--server_address={server.address}"),
                *(f"--fps={FPS}", f"--duration_s={seconds}", f"--summary={summary}", "--similarity_tolerance=0"),
            ]
            with Edge(folder, *flags) as edge:
                edge.wait_for("-> running")
                if blocked:
                    upstream.stdin.write("block\n")
                    upstream.stdin.flush()
                edge.wait()
                failed = edge.text.count("inference failed: ")
    finally:
        upstream.kill()
        upstream.communicate()
    return json.loads(summary.read_text()), failed


if __name__ == "__main__":
    start(OpenpiConfig, main)
