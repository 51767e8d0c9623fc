"""Ports, servos and cameras that are not what a configuration says: one line, the right code, the arm left alone."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edge_runtime.virtual_arm.bus import VirtualBus
from edge_runtime.virtual_arm.calibration import write_calibration
from tests.bad_input.conftest import Answer, open_to_all
from tests.bad_input.test_files import user

START = "edge-runtime start"
IDS = range(1, 7)


@pytest.fixture
def arm(tmp_path: Path) -> Iterator[VirtualBus]:
    """An arm that is right but for what a test does to it, and that nobody may write to."""
    with VirtualBus(seed=1) as arm:
        yield arm
        assert not arm.log.writes("Torque_Enable")
        assert not arm.log.writes("Goal_Position")


@pytest.fixture
def start(answer: Answer, tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """`start` on the arm behind `port`; no supervisor watches, since torque is never on."""

    write_calibration(tmp_path, "virtual")

    def run(port: str, *flags: str) -> tuple[int, str]:
        arm = ("--robot.type=so101_follower", f"--robot.port={port}", "--robot.id=virtual", "--robot.stop_policy=hold")
        return answer(START, *arm, f"--robot.calibration_dir={tmp_path}", "--give_up_after_s=0.1", *flags)

    return run


Start = Callable[..., tuple[int, str]]

# Ports.


def test_a_port_that_is_not_there(start: Start) -> None:
    code, said = start("/dev/ttyACM77")
    assert (code, said.partition(";")[0]) == (74, "robot.port: /dev/ttyACM77 is not there")
    assert "serial adapters: " in said


def test_what_is_no_port(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert start(f"{tmp_path}/file") == (74, f"robot.port: {tmp_path}/file is not a serial port")
    assert start(str(tmp_path)) == (74, f"robot.port: {tmp_path} is not a serial port")
    os.mkfifo(tmp_path / "pipe")
    assert start(f"{tmp_path}/pipe") == (74, f"robot.port: {tmp_path}/pipe is not a serial port")
    code, said = start("/dev/null")
    assert code == 74
    assert said.startswith("robot.port: /dev/null cannot be opened: ")


def test_a_port_in_use(start: Start, arm: VirtualBus) -> None:
    with open(arm.path, "rb+", buffering=0) as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)
        said = f"robot.port: {arm.path} is in use by another program; a bus has one owner"
        assert start(arm.path) == (74, said)


def test_a_port_that_is_not_permitted(start: Start, arm: VirtualBus, tmp_path: Path) -> None:
    open_to_all(tmp_path)
    os.chmod(arm.path, 0)
    with user(ordinary=True):
        code, said = start(arm.path)
    assert code == 77
    assert said.startswith(f"robot.port: {arm.path} may be opened by group ")
    assert "sudo usermod -aG " in said


def test_a_port_with_something_else_behind_it(start: Start) -> None:
    """A serial port that answers everything with text, as a microcontroller's console does."""
    master, slave = os.openpty()

    def talk() -> None:
        try:
            while os.read(master, 100):
                os.write(master, b"\r\nUnknown command\r\n> ")
        except OSError:  # the end of the test
            pass

    thread = threading.Thread(target=talk)
    thread.start()
    path = os.ttyname(slave)
    try:
        code, said = start(path)
    finally:
        os.close(slave)
        os.write(master, b"")
        os.close(master)
        thread.join(5)
    assert code == 74
    assert said.startswith(
        f"robot.port: {path}: none of the six servos answers, and what it says is no servo's frame: "
    )


def test_a_port_on_which_nothing_answers(start: Start, arm: VirtualBus) -> None:
    arm.inject({"fault": "power", "on": False})
    said = f"robot.port: {arm.path}: none of the six servos answers: is the 12 V supply on?"
    assert start(arm.path) == (74, said)


def test_a_line_that_echoes(start: Start, arm: VirtualBus) -> None:
    assert start(arm.path, "--robot.echo=true") == (74, f"{arm.path}: the line does not echo: use --robot.echo=false")
    arm.inject({"fault": "echo"})
    assert start(arm.path) == (74, f"{arm.path}: the line returns what is sent (--robot.echo=true)")


# Servos.

SERVOS: dict[str, tuple[dict[str, Any], int, str]] = {
    "one is missing": (
        {"fault": "silent", "ids": [3]},
        74,
        "robot.port: {port}: no answer from elbow_flex (id 3); of six servos 5 answer: check cable and id",
    ),
    "several are missing": (
        {"fault": "silent", "ids": [2, 6]},
        74,
        "robot.port: {port}: no answer from shoulder_lift (id 2), gripper (id 6); of six servos 4 answer: check ",
    ),
    "another model": (
        {"fault": "register", "ids": [2], "name": "Model_Number", "value": 2825},
        74,
        "shoulder_lift (id 2) is model 2825 (STS3250), expected 777 (STS3215)",
    ),
    "an unknown model": (
        {"fault": "register", "ids": [5], "name": "Model_Number", "value": 999},
        74,
        "wrist_roll (id 5) is model 999 (unknown), expected 777 (STS3215)",
    ),
    "mixed firmware": (
        {"fault": "register", "ids": [6], "name": "Firmware_Minor_Version", "value": 2},
        74,
        "the servos have different firmware: shoulder_pan (id 1) ",
    ),
    "hot": (
        {"fault": "register", "ids": [4], "name": "Present_Temperature", "value": 66},
        74,
        "wrist_flex (id 4) is 66 °C hot: robot.max_temperature lets it start at 60",
    ),
    "another calibration": (
        {"fault": "register", "ids": [3], "name": "Max_Position_Limit", "value": 3000},
        78,
        "calibration {folder}/virtual.json is not the one in the servos (elbow_flex.range_max: file ",
    ),
}


@pytest.mark.parametrize("case", SERVOS)
def test_servos(start: Start, arm: VirtualBus, tmp_path: Path, case: str) -> None:
    order, code, said = SERVOS[case]
    arm.inject(order)
    got, line = start(arm.path)
    assert line.startswith(said.format(port=arm.path, folder=tmp_path))
    assert got == code


def test_another_calibration_names_both_values_and_the_flag(start: Start, arm: VirtualBus, tmp_path: Path) -> None:
    file = tmp_path / "virtual.json"
    content = json.loads(file.read_text())
    was = content["gripper"]["range_max"]
    content["gripper"]["range_max"] = was - 100
    file.write_text(json.dumps(content))
    _, said = start(arm.path)
    assert f"(gripper.range_max: file {was - 100}, servo {was})" in said
    assert said.endswith("--robot.write_calibration=true writes the file into them")


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--robot.rest_pose={grippr: 5}", "robot.rest_pose.grippr: is no joint of this arm; did you mean gripper?"),
        ("--robot.rest_pose.gripper=101", "robot.rest_pose.gripper: 101 is not in 0.0..100.0 percent"),
        ("--robot.rest_pose.shoulder_pan=200", "robot.rest_pose.shoulder_pan: 200 is not in "),
    ],
)
def test_a_rest_pose(start: Start, flag: str, said: str) -> None:
    code, line = start("/dev/none", flag)
    assert line.startswith(said)
    assert code == 78


# Cameras.


@contextmanager
def web(kind: str, *parts: bytes, status: int = 200) -> Iterator[str]:
    """A server that answers every GET with `parts`, and then says no more until the end."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.end_headers()
            with suppress(OSError):  # a camera that is refused hangs up
                for part in parts:
                    self.wfile.write(part)
                self.wfile.flush()
            over.wait(10)

        def log_message(self, *args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/cam"
    finally:
        over.set()
        server.shutdown()
        thread.join()
        server.server_close()


def jpeg(height: int, width: int) -> bytes:
    data = cv2.imencode(".jpg", np.zeros((height, width, 3), np.uint8))[1].tobytes()
    return b"--f\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n" % len(data) + data + b"\r\n"


MJPEG = "multipart/x-mixed-replace; boundary=f"
SOURCES: dict[str, tuple[Any, tuple[str, ...], int, str]] = {
    "a device that is not there": ("/dev/video77", (), 74, "{source} is not there; there "),
    "a number that is not there": ("77", (), 74, "/dev/video77 is not there; there "),
    "a file that is not there": ("{folder}/no.mp4", (), 74, "{source} is not there"),
    "a file that is no video": ("{folder}/it", (), 74, "{source} is not a video that OpenCV can read"),
    "a folder": ("{folder}", (), 74, "{source} is not a video file"),
    "a pipe": ("{folder}/pipe", (), 74, "{source} is not a video file"),
    "an endless device that is no camera": ("{folder}/zero", (), 74, "{source} is not a video file"),
    "a folder of devices": ("/dev/fd", (), 74, "{source} is not a camera"),
    "a device that films nothing": ("/dev/null", (), 74, "{source} cannot be opened: another program has it, or it"),
    "nobody at the address": ("http://127.0.0.1:9/x", (), 74, "{source} cannot be reached: Connection refused"),
    "an error": (("text/html", b"", 404), (), 74, "{source} answers 404 Not Found"),
    "no frame": ((MJPEG,), ("warmup_s=0.1",), 74, "{source} answers, but gave no frame within 0.1 s (warmup_s)"),
    "another size": (
        (MJPEG, *[jpeg(48, 64)] * 9),
        ("width=640", "height=480"),
        74,
        "{source} delivers 64x48, asked for 640x480",
    ),
}


@pytest.mark.parametrize("case", SOURCES)
def test_cameras(answer: Answer, tmp_path: Path, case: str) -> None:
    source, settings, code, said = SOURCES[case]
    (tmp_path / "it").write_text("no video")
    (tmp_path / "zero").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    with ExitStack() as stack:
        if not isinstance(source, str):
            kind, *parts = source
            status = parts.pop() if parts and isinstance(parts[-1], int) else 200
            source = stack.enter_context(web(kind, *parts, status=status))
        source = source.format(folder=tmp_path)
        flags = ["type=opencv", f"index_or_path={source}", *settings]
        robot = ("--robot.type=none", "--robot.joints.a.pos=degrees", "--give_up_after_s=0.1")
        got, line = answer(START, *robot, *(f"--robot.cameras.front.{flag}" for flag in flags))
    assert line.startswith("camera front: " + said.format(source=source))
    assert got == code
