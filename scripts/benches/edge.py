"""The whole edge as a process on the virtual arm: start-up, stops, memory, CPU, and the rate on a slow link.

python -m scripts.benches.edge            # three runs of 60 s through the slow link
python -m scripts.benches.edge --quick

Start-up and the slow link run the state policy; memory and CPU two cameras of 640x480, resized on the robot.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from edge_runtime.tools.demo.processes import Process
from scripts.rig.proxy import Link, Proxy

MEGABIT = 1_000_000 / 8
FPS = 30
SETTLED_S = 0.5  # for who stopped the arm to let go of the port


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10 s of the slow link, once")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory(prefix="bench-edge-") as name, ExitStack() as stack:
        folder = Path(name)
        arm = stack.enter_context(
            Process("arm", "edge_runtime", ["virtual-arm", "--http_port=0", "--cameras=[]", *ENDS], folder)
        ).ready()
        server = stack.enter_context(policy_server(folder, "act_so101_pick_place"))
        start_up(folder, arm, server, runs=2 if quick else 5)
        stops(folder, arm, server, runs=2 if quick else 5)
        slow_link(folder, arm, server, seconds=10 if quick else 60, runs=1 if quick else 3)
        two_cameras(folder, arm, seconds=5 if quick else 20)
    return 0


ENDS = ("--until_stdin_closes=true",)


@contextmanager
def policy_server(folder: Path, bundle: str) -> Iterator[str]:
    """A warm server of `bundle`; its address."""
    with Process(
        f"server-{bundle}", "policy_server", ["start", bundle, "--listen=127.0.0.1:0", *ENDS], folder
    ) as server:
        yield server.said("serving [").split()[-1]


def flags(arm: dict[str, Any], server: str) -> list[str]:
    return [
        "start",
        "--robot.type=so101_follower",
        f"--robot.port={arm['port']}",
        f"--robot.id={arm['robot_id']}",
        f"--robot.calibration_dir={arm['calibration_dir']}",
        f"--server_address={server}",
    ]


def state_flags(arm: dict[str, Any], server: str) -> list[str]:
    return [*flags(arm, server), f"--extra_state={{environment_state: {arm['http']}/state}}"]


def start_up(folder: Path, arm: dict[str, Any], server: str, runs: int) -> None:
    """From the command to the first executed action."""
    took = []
    for _ in range(runs):
        began = time.monotonic()
        with Process("edge", "edge_runtime", state_flags(arm, server), folder) as edge:
            edge.said("-> running")
            took.append(time.monotonic() - began)
    print(
        f"start to first action, state policy, server warm: median {statistics.median(took):.2f} s "
        f"(of {runs}, {min(took):.2f} to {max(took):.2f})"
    )


def stops(folder: Path, arm: dict[str, Any], server: str, runs: int) -> None:
    """From a signal to the stop policy, by the bus's own log: its first frame, and torque off on all six."""
    for number, policy in ((signal.SIGTERM, "limp"), (signal.SIGTERM, "park"), (signal.SIGKILL, "limp")):
        first, off = [], []
        for _ in range(runs):
            flags = [*state_flags(arm, server), f"--robot.stop_policy={policy}"]
            with Process("edge", "edge_runtime", flags, folder) as edge:
                edge.said("-> running")
                began = time.monotonic()
                os.kill(edge.pid, number)
                limp = next_write(arm, began, "Torque_Limit")
                first.append(limp - began)
                off.append(next_write(arm, limp, "Torque_Enable") - began)
                next_write(arm, began + off[-1], "Torque_Limit")  # put back: the last that is written
            threading.Event().wait(SETTLED_S)
        reach = "0.5 s to the first frame" if number == signal.SIGKILL else "2 s, park 7 s"
        print(
            f"{number.name}, {policy}: the arm begins to go limp after {statistics.median(first):.2f} s "
            f"({min(first):.2f} to {max(first):.2f}), torque is off after {statistics.median(off):.2f} s "
            f"({min(off):.2f} to {max(off):.2f}), of {runs} (reach {reach})"
        )


def next_write(arm: dict[str, Any], after_s: float, register: str) -> float:
    """When `register` was first written after `after_s`, once it has been."""
    until_s = time.monotonic() + 30
    while time.monotonic() < until_s:
        with urllib.request.urlopen(f"{arm['http']}/log", timeout=10) as answer:
            for entry in json.load(answer):
                if entry["time_s"] > after_s and "WRITE" in entry["instruction"] and register in entry["registers"]:
                    return float(entry["time_s"])
    raise TimeoutError(f"{register} was not written within 30 s")


def slow_link(folder: Path, arm: dict[str, Any], server: str, seconds: float, runs: int) -> None:
    """The rate while everything goes through 1 Mbit/s each way."""
    for run in range(runs):
        with Proxy(server) as proxy:
            proxy.link = Link(bytes_per_s=MEGABIT)
            log, summary = folder / "levels.csv", folder / "edge.json"
            run_edge(
                folder,
                [
                    *state_flags(arm, proxy.address),
                    *(f"--duration_s={seconds}", f"--queue_log={log}", f"--summary={summary}"),
                ],
            )
        with log.open(newline="") as file:
            rows = [(float(row["time_s"]), int(row["count"])) for row in csv.DictReader(file)]
        (first_s, first), (last_s, last) = rows[0], rows[-1]
        late = [b_s - a_s for (a_s, a), (b_s, b) in pairwise(rows) if b == a + 1]  # what the observer saw back to back
        report = json.loads(summary.read_text())
        longest = 1 + report["lateness_s"]["max"] * FPS  # a tick is on time and the next as late as any was
        print(
            f"1 Mbit/s, {run + 1} of {runs}, {last_s - first_s:.0f} s: {(last - first) / (last_s - first_s):.3f} Hz, "
            f"period p99.9 {np.quantile(late, 0.999) * FPS:.3f} periods of {len(late)} seen, "
            f"at most {longest:.3f} of all, "
            f"{report['loop']['late']} late, {report['loop']['missed']} missed; {report['realtime']}"
        )


def two_cameras(folder: Path, arm: dict[str, Any], seconds: float) -> None:
    """Memory and CPU with two real captures of 640x480 at 30 fps, resized and sent as JPEG; the idle server's too."""
    with mjpeg() as url, policy_server(folder, "act_so101_cubes") as server:
        cameras = {name: {"type": "opencv", "index_or_path": url} for name in ("static", "wrist")}
        arguments = [*flags(arm, server), f"--robot.cameras={json.dumps(cameras)}", "--resize=true"]
        with Process("edge-cameras", "edge_runtime", arguments, folder) as edge:
            edge.said("-> running")
            cpu = cpu_part(edge.pid, seconds)
            print(
                f"edge with two cameras of 640x480 at {FPS} Hz: {status_mb(edge.pid, 'VmRSS'):.0f} MB resident "
                f"(most {status_mb(edge.pid, 'VmHWM'):.0f}; {status_mb(edge.pid, 'RssFile'):.0f} of it files such as "
                f"libraries, as the kernel has cached them), {cpu:.1%} of a core"
            )
    with Process("idle", "policy_server", ["start", "act_so101_cubes", "--listen=127.0.0.1:0", *ENDS], folder) as idle:
        idle.said("serving [")
        print(f"idle server with a model loaded: {cpu_part(idle.pid, seconds):.2%} of a core")


def run_edge(folder: Path, arguments: list[str]) -> None:
    with Process("edge", "edge_runtime", arguments, folder) as edge:
        edge.finish()


def cpu_part(pid: int, seconds: float) -> float:
    """CPU time per wall time of a process, over `seconds`."""
    began, used = time.monotonic(), cpu_s(pid)
    threading.Event().wait(seconds)
    return (cpu_s(pid) - used) / (time.monotonic() - began)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def status_mb(pid: int, field: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(f"/proc/{pid}/status has no {field}")


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
    sys.exit(main())
