"""The whole edge as a process on the virtual arm: import, start-up, stops, memory, CPU, and the rate on a slow link.

python -m scripts.benches.edge            # three runs of 60 s through the slow link
python -m scripts.benches.edge --quick

Start-up and the slow link run the state policy; memory and CPU two cameras of 640x480, resized on the robot.
"""

from __future__ import annotations

import csv
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np

from scripts.rig.bench import reach, start
from scripts.rig.program import Arm, Edge, Server
from scripts.rig.proxy import Link, Proxy
from scripts.rig.usage import cpu_s, memory_mb

MEGABIT = 1_000_000 / 8
FPS = 30
IMPORT_S = 0.05
SETTLED_S = 0.5  # for who stopped the arm to let go of the port


@dataclass
class EdgeConfig:
    """Start-up, stops, memory and rate of the whole edge."""

    quick: bool = False  # 10 s of the slow link, once


def main(config: EdgeConfig) -> None:
    quick = config.quick
    import_time(runs=5 if quick else 20)
    with tempfile.TemporaryDirectory(prefix="bench-edge-") as name, ExitStack() as stack:
        folder = Path(name)
        arm = stack.enter_context(Arm(folder, "--cameras=[]"))
        server = stack.enter_context(Server(folder, "act_so101_pick_place"))
        start_up(folder, arm, server, runs=2 if quick else 5)
        stops(folder, arm, server, runs=2 if quick else 5)
        slow_link(folder, arm, server, seconds=10 if quick else 60, runs=1 if quick else 3)
        two_cameras(folder, arm, seconds=5 if quick else 20)


def import_time(runs: int) -> None:
    """Of the package alone, each time in an interpreter of its own."""
    program = "import time; began = time.perf_counter(); import edge_runtime; print(time.perf_counter() - began)"
    took = [float(subprocess.check_output([sys.executable, "-c", program])) for _ in range(runs)]
    median_s = statistics.median(took)
    reach(
        f"import edge_runtime: median {median_s * 1e3:.1f} ms (of {runs}, {min(took) * 1e3:.1f} to "
        f"{max(took) * 1e3:.1f}; reach {IMPORT_S * 1e3:g} ms)",
        median_s <= IMPORT_S,
    )


def start_up(folder: Path, arm: Arm, server: Server, runs: int) -> None:
    """From the command to the first executed action."""
    took = []
    for _ in range(runs):
        began = time.monotonic()
        with Edge(folder, *arm.flags, f"--server_address={server.address}") as edge:
            edge.wait_for("-> running")
            took.append(time.monotonic() - began)
    median_s = statistics.median(took)
    reach(
        f"start to first action, state policy, server warm: median {median_s:.2f} s of {runs} "
        f"({min(took):.2f} to {max(took):.2f}; reach 1.5)",
        median_s <= 1.5,
    )


def stops(folder: Path, arm: Arm, server: Server, runs: int) -> None:
    """From a signal to the stop policy, by the bus's own log: its first frame, and torque off on all six."""
    for number, policy, most_s in (
        (signal.SIGTERM, "limp", 2),
        (signal.SIGTERM, "park", 7),
        (signal.SIGKILL, "limp", 0.5),
    ):
        first, off = [], []
        for _ in range(runs):
            flags = [*arm.flags, f"--server_address={server.address}", f"--robot.stop_policy={policy}"]
            with Edge(folder, *flags) as edge:
                edge.wait_for("-> running")
                began = time.monotonic()
                edge.process.send_signal(number)
                limp = next_write(arm, began, "Torque_Limit")
                first.append(limp - began)
                off.append(next_write(arm, limp, "Torque_Enable") - began)
                next_write(arm, began + off[-1], "Torque_Limit")  # put back: the last that is written
            threading.Event().wait(SETTLED_S)
        killed = number == signal.SIGKILL
        begins_s, off_s = statistics.median(first), statistics.median(off)
        reach(
            f"{number.name}, {policy}: the arm begins to go limp after {begins_s:.2f} s ({min(first):.2f} to "
            f"{max(first):.2f}), torque is off after {off_s:.2f} s ({min(off):.2f} to {max(off):.2f}), of {runs} "
            f"(reach {most_s:g} s to the {'first frame' if killed else 'end'})",
            (begins_s if killed else off_s) <= most_s,
        )


def next_write(arm: Arm, after_s: float, register: str) -> float:
    """When `register` was first written after `after_s`, once it has been."""
    until_s = time.monotonic() + 30
    while time.monotonic() < until_s:
        for entry in arm.get("/log"):
            if entry["time_s"] > after_s and "WRITE" in entry["instruction"] and register in entry["registers"]:
                return float(entry["time_s"])
    raise TimeoutError(f"{register} was not written within 30 s")


def slow_link(folder: Path, arm: Arm, server: Server, seconds: float, runs: int) -> None:
    """The rate while everything goes through 1 Mbit/s each way."""
    for run in range(runs):
        with Proxy(server.address) as proxy:
            proxy.link = Link(bytes_per_s=MEGABIT)
            log, summary = folder / "levels.csv", folder / "edge.json"
            flags = [f"--duration_s={seconds}", f"--queue_log={log}", f"--summary={summary}"]
            with Edge(folder, *arm.flags, f"--server_address={proxy.address}", *flags) as edge:
                edge.finish()
        with log.open(newline="") as file:
            rows = [(float(row["time_s"]), int(row["count"])) for row in csv.DictReader(file)]
        (first_s, first), (last_s, last) = rows[0], rows[-1]
        late = [b_s - a_s for (a_s, a), (b_s, b) in pairwise(rows) if b == a + 1]  # what the observer saw back to back
        report = json.loads(summary.read_text())
        longest = 1 + report["lateness_s"]["max"] * FPS  # a tick is on time and the next as late as any was
        hz, p999 = (last - first) / (last_s - first_s), float(np.quantile(late, 0.999)) * FPS
        reach(
            f"1 Mbit/s, {run + 1} of {runs}, {last_s - first_s:.0f} s: {hz:.3f} Hz (reach {FPS} ± 0.05), period p99.9 "
            f"{p999:.3f} periods of {len(late)} seen (reach 1.2), at most {longest:.3f} of all, "
            f"{report['loop']['late']} late, {report['loop']['missed']} missed; {report['realtime']}",
            abs(hz - FPS) <= 0.05 and p999 <= 1.2,
        )


def two_cameras(folder: Path, arm: Arm, seconds: float) -> None:
    """Memory and CPU with two real captures of 640x480 at 30 fps, resized and sent as JPEG; the idle server's too."""
    with mjpeg() as url, Server(folder, "act_so101_cubes") as server:
        cameras = {name: {"type": "opencv", "index_or_path": url} for name in ("static", "wrist")}
        flags = [f"--server_address={server.address}", f"--robot.cameras={json.dumps(cameras)}", "--resize=true"]
        with Edge(folder, *arm.robot, *flags) as edge:
            edge.wait_for("-> running")
            pid = edge.process.pid
            cpu, resident = cpu_part(pid, seconds), memory_mb(pid)
            reach(
                f"edge with two cameras of 640x480 at {FPS} Hz: {resident:.0f} MB resident (most "
                f"{memory_mb(pid, 'VmHWM'):.0f}; {memory_mb(pid, 'RssFile'):.0f} of it files such as libraries, as the "
                f"kernel has cached them; reach 120), {cpu:.1%} of a core",
                resident <= 120,
            )
    with Server(folder, "act_so101_cubes") as idle:
        share = cpu_part(idle.process.pid, seconds)
        reach(f"idle server with a model loaded: {share:.2%} of a core (reach 2 %)", share < 0.02)


def cpu_part(pid: int, seconds: float) -> float:
    """CPU time per wall time of a process, over `seconds`."""
    began, used = time.monotonic(), cpu_s(pid)
    threading.Event().wait(seconds)
    return (cpu_s(pid) - used) / (time.monotonic() - began)


@contextmanager
def mjpeg() -> Iterator[str]:
    """A camera of 640x480 at 30 fps behind a URL: frames encoded once, each unlike the one before."""
    random = np.random.default_rng(0)
    scene = cv2.resize(random.integers(0, 255, (12, 16, 3), np.uint8), (640, 480), interpolation=cv2.INTER_CUBIC)
    frames = [
        cv2.imencode(".jpg", np.roll(scene, 4 * step, axis=1), [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes()
        for step in range(20)
    ]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
            self.end_headers()
            due = time.monotonic()
            try:
                while not stop.wait(max(due - time.monotonic(), 0)):
                    frame = frames[round(due * FPS) % len(frames)]
                    head = f"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {len(frame)}\r\n\r\n"
                    self.wfile.write(head.encode() + frame + b"\r\n")
                    due += 1 / FPS
            except OSError:
                return  # the reader left

        def log_message(self, *args: object) -> None:
            """Quiet."""

    stop = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serve: Callable[[], None] = server.serve_forever
    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        stop.set()
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    start(EdgeConfig, main)
