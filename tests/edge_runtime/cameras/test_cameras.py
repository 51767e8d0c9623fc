"""Cameras over real captures: an MJPEG server and a video file at the test's command, and what the errors say."""

from __future__ import annotations

import errno
import http.server
import itertools
import logging
import os
import re
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from edge_runtime.cameras import CameraFrame, capture, make_camera, opencv, v4l2
from edge_runtime.cameras.opencv import OpenCVCamera
from edge_runtime.config import OpenCVCameraConfig
from edge_runtime.errors import AccessError, CameraError

PATIENCE_S = 20.0  # far beyond what any frame takes; a test that waits for longer has failed
GREETING = 4  # frames that OpenCV's FFmpeg may want to see before it calls a stream open


def flat(rgb: tuple[int, int, int], height: int = 48, width: int = 64) -> npt.NDArray[np.uint8]:
    return np.full((height, width, 3), rgb, np.uint8)


def shade(number: int) -> npt.NDArray[np.uint8]:
    """Frame `number` of a series in which no two neighbours are alike."""
    return flat((number % 32 * 8, 100, 100))


def shown(frame: CameraFrame | None) -> int:
    """Which `shade` it is."""
    assert frame is not None
    return round(float(frame.pixels[..., 0].mean()) / 8)


def encoded(rgb: npt.NDArray[np.uint8]) -> bytes:
    return bytes(cv2.imencode(".jpg", cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR))[1])


class MjpegServer:
    """Streams what it is told, when it is told, to its newest connection, each of which begins with `greeting`."""

    def __init__(self) -> None:
        self.greeting = [shade(number) for number in range(1, GREETING + 1)]
        self.status = 200
        self.content_type = "multipart/x-mixed-replace; boundary=frame"
        self.connections = 0
        self._jpegs: deque[bytes] = deque()
        self._changed = threading.Condition()
        streams = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                streams.serve(self)

            def log_message(self, *_: object) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/stream"

    def __enter__(self) -> MjpegServer:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def send(self, *frames: npt.NDArray[np.uint8]) -> None:
        self._say(*map(encoded, frames))

    def hang_up(self) -> None:
        """End the stream once all that was sent before has gone out."""
        self._say(b"")

    def _say(self, *jpegs: bytes) -> None:
        with self._changed:
            self._jpegs.extend(jpegs)
            self._changed.notify_all()

    def _next(self, connection: int) -> bytes:
        """What is next to go out; b"" also for a connection that its client has left for another."""
        with self._changed:
            self._changed.wait_for(lambda: self._jpegs or self.connections > connection)
            return b"" if self.connections > connection else self._jpegs.popleft()

    def wait_for_connections(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.connections >= count, PATIENCE_S)

    def serve(self, request: http.server.BaseHTTPRequestHandler) -> None:
        with self._changed:
            self.connections += 1
            connection = self.connections
            self._changed.notify_all()
        request.send_response(self.status)
        request.send_header("Content-Type", self.content_type)
        request.end_headers()
        try:
            for jpeg in itertools.chain(map(encoded, self.greeting), iter(lambda: self._next(connection), b"")):
                head = f"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {len(jpeg)}\r\n\r\n"
                request.wfile.write(head.encode() + jpeg + b"\r\n")
        except OSError:
            return


@pytest.fixture
def server() -> Iterator[MjpegServer]:
    with MjpegServer() as streams:
        yield streams


@pytest.fixture
def camera(server: MjpegServer) -> Iterator[Callable[..., OpenCVCamera]]:
    """Makes cameras on the server's stream, and closes them once the stream has ended."""
    made: list[OpenCVCamera] = []

    def make(clock_ns: Callable[[], int] = time.monotonic_ns, **settings: Any) -> OpenCVCamera:
        config = OpenCVCameraConfig(**{"index_or_path": server.url, "warmup_s": PATIENCE_S, **settings})
        made.append(OpenCVCamera("front", config, clock_ns=clock_ns))
        return made[-1]

    yield make
    server.greeting = []
    for _ in range(server.connections + 1):
        server.hang_up()
    for each in made:
        each.close()


@pytest.fixture
def open_camera(camera: Callable[..., OpenCVCamera]) -> Callable[..., OpenCVCamera]:
    """Makes cameras that are open already."""

    def make(*arguments: Any, **settings: Any) -> OpenCVCamera:
        made = camera(*arguments, **settings)
        made.open()
        return made

    return make


# Frames.


def test_table_makes_the_kind_that_the_configuration_names(server: MjpegServer) -> None:
    with make_camera("front", OpenCVCameraConfig(index_or_path=server.url, warmup_s=PATIENCE_S)) as made:
        assert isinstance(made, OpenCVCamera)
        assert made.shape == (48, 64)
        server.hang_up()


def test_frames_are_rgb_and_carry_the_time_of_their_grab(
    server: MjpegServer, open_camera: Callable[..., OpenCVCamera]
) -> None:
    front = open_camera()
    front.wait(GREETING - 1, PATIENCE_S)
    before_ns = time.monotonic_ns()
    server.send(flat((250, 100, 10)))
    frame = front.wait(GREETING, PATIENCE_S)
    assert frame is not None
    assert before_ns < frame.time_ns < time.monotonic_ns()
    np.testing.assert_allclose(frame.pixels[24, 32], (250, 100, 10), atol=4)
    assert frame.pixels.dtype == np.uint8
    assert frame.pixels.flags.c_contiguous


def test_bgr_when_asked_for(server: MjpegServer, open_camera: Callable[..., OpenCVCamera]) -> None:
    server.greeting = [flat((250, 100, 10))] * GREETING
    front = open_camera(color_mode="bgr")
    frame = front.latest()
    assert frame is not None
    np.testing.assert_allclose(frame.pixels[24, 32], (10, 100, 250), atol=4)


@pytest.mark.parametrize(
    ("rotation", "corner"),
    [(0, (0, 0)), (90, (0, -1)), (180, (-1, -1)), (-90, (-1, 0)), (270, (-1, 0))],
)
def test_rotation(
    server: MjpegServer, open_camera: Callable[..., OpenCVCamera], rotation: int, corner: tuple[int, int]
) -> None:
    marked = flat((0, 0, 0))
    marked[:16, :16] = 255  # top left
    server.greeting = [marked] * GREETING
    height, width = (64, 48) if rotation in (90, -90, 270) else (48, 64)
    front = open_camera(rotation=rotation, height=height, width=width)
    assert front.shape == (height, width)
    frame = front.latest()
    assert frame is not None
    corners = {(y, x): int(frame.pixels[y, x].min()) > 200 for y in (0, -1) for x in (0, -1)}
    assert [where for where, bright in corners.items() if bright] == [corner]


def test_only_the_newest_of_a_burst_is_kept(server: MjpegServer, open_camera: Callable[..., OpenCVCamera]) -> None:
    front = open_camera()
    server.send(*(shade(number) for number in range(GREETING + 1, 31)))
    assert shown(front.wait(29, PATIENCE_S)) == 30
    assert shown(front.latest()) == 30
    assert front.frames == 30


def test_stalled_camera_never_holds_the_reader(server: MjpegServer, open_camera: Callable[..., OpenCVCamera]) -> None:
    front = open_camera()
    stalled = front.wait(GREETING - 1, PATIENCE_S)
    assert stalled is not None
    for _ in range(1000):
        assert front.latest() is stalled  # the same frame, and its age is plain to see
    server.send(shade(9))
    assert shown(front.wait(GREETING, PATIENCE_S)) == 9
    assert front.failures == 0


def test_frozen_camera_delivers_and_its_number_stands(
    server: MjpegServer, open_camera: Callable[..., OpenCVCamera]
) -> None:
    front = open_camera()
    server.send(*[shade(7)] * 5, shade(8))
    frame = front.wait(GREETING + 1, PATIENCE_S)
    assert frame is not None
    assert frame.number == GREETING + 2
    assert front.frames == GREETING + 6


# The rate, by a clock that the test drives.


class Clock:
    """A camera's clock: every look at it is one period later."""

    def __init__(self, fps: float) -> None:
        self.period_ns = round(1e9 / fps)
        self.now_ns = 0

    def __call__(self) -> int:
        self.now_ns += self.period_ns
        return self.now_ns


@pytest.mark.parametrize(("repeats", "delivered"), [(1, 30.0), (2, 15.0), (3, 10.0)])
def test_delivered_fps_counts_frames_that_changed(
    server: MjpegServer, open_camera: Callable[..., OpenCVCamera], repeats: int, delivered: float
) -> None:
    front = open_camera(Clock(30))
    server.send(*(shade(number) for number in range(5, 105) for _ in range(repeats)))
    assert shown(front.wait(103, PATIENCE_S)) == 104 % 32
    assert front.delivered_fps == pytest.approx(delivered, rel=0.05)


def test_slow_camera_is_said_once_and_so_is_its_recovery(
    server: MjpegServer, open_camera: Callable[..., OpenCVCamera], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "edge_runtime.cameras")
    clock = Clock(18)
    front = open_camera(clock, fps=30)
    server.send(*(shade(number) for number in range(5, 100)))
    front.wait(98, PATIENCE_S)
    clock.period_ns = round(1e9 / 30)
    server.send(*(shade(number) for number in range(100, 200)))
    front.wait(198, PATIENCE_S)
    slow, well = (record.getMessage() for record in caplog.records)
    assert slow == "camera front delivers 18.0 changing frames per second, asked for 30"
    assert re.fullmatch(r"camera front delivers 2[89]\.\d changing frames per second again", well)


# Outages.


def test_stream_that_ends_is_opened_again(
    server: MjpegServer, open_camera: Callable[..., OpenCVCamera], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "edge_runtime.cameras")
    front = open_camera(Clock(1))  # a second from frame to frame
    front.wait(GREETING - 1, PATIENCE_S)
    server.greeting = [shade(number) for number in range(11, 25)]
    server.hang_up()
    server.wait_for_connections(2)
    assert shown(front.wait(GREETING + 13, PATIENCE_S)) == 24
    assert front.failures == 1
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"camera front: {server.url} stopped delivering frames; trying again", "camera front is back"]


def test_one_picture_a_connection_is_said_once_and_asked_for_ever_later(
    open_camera: Callable[..., OpenCVCamera], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[int] = []
    enough = threading.Event()

    class BackOff(tuple[float, ...]):
        def __getitem__(self, index: Any) -> Any:
            waited.append(index)
            if len(waited) == 6:
                enough.set()
            return 0.0

    monkeypatch.setattr(opencv, "BACK_OFF_S", BackOff(opencv.BACK_OFF_S))
    picture = cv2.imencode(".jpg", np.full((96, 96, 3), 80, np.uint8))[1].tobytes()

    class Snapshot(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "image/jpeg")
            self.send_header("Content-Length", str(len(picture)))
            self.end_headers()
            self.wfile.write(picture)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Snapshot) as snapshots:
        threading.Thread(target=snapshots.serve_forever, daemon=True).start()
        config = OpenCVCameraConfig(index_or_path=f"http://127.0.0.1:{snapshots.server_port}/")
        with OpenCVCamera("front", config):
            assert enough.wait(PATIENCE_S)
        snapshots.shutdown()
    assert waited[:6] == [0, 1, 2, 3, 4, 4]
    assert len([record for record in caplog.records if "trying again" in record.getMessage()]) == 1


def test_a_shells_proxy_is_not_the_way_to_a_camera(
    server: MjpegServer, open_camera: Callable[..., OpenCVCamera], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert open_camera().latest() is not None


def test_silent_stream_is_opened_again(
    server: MjpegServer, open_camera: Callable[..., OpenCVCamera], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "READ_S", 0.2)
    front = open_camera()
    frame = front.wait(GREETING - 1, PATIENCE_S)
    server.wait_for_connections(2)
    assert frame is not None
    assert front.wait(frame.number, PATIENCE_S) is not None


def test_stream_that_comes_back_in_another_size_is_not_shown(
    server: MjpegServer, open_camera: Callable[..., OpenCVCamera], caplog: pytest.LogCaptureFixture
) -> None:
    front = open_camera()
    last = front.wait(GREETING - 1, PATIENCE_S)
    server.greeting = [flat((9, 9, 9), 96, 96)] * GREETING
    server.hang_up()
    server.wait_for_connections(4)
    assert front.latest() is last
    assert front.failures >= 2
    server.greeting = [shade(20)] * GREETING
    assert shown(front.wait(GREETING, PATIENCE_S)) == 20
    assert len([record for record in caplog.records if "trying again" in record.getMessage()]) == 1


# Opening and closing.


def test_open_and_close_twice_and_again(server: MjpegServer, camera: Callable[..., OpenCVCamera]) -> None:
    front = camera()
    front.close()
    assert front.latest() is None
    for _ in range(2):
        front.open()
        front.open()
        assert front.latest() is not None
        server.hang_up()
        front.close()
        front.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "camera-front"]


def test_close_does_not_wait_for_a_stalled_stream_beyond_its_timeout(
    server: MjpegServer, camera: Callable[..., OpenCVCamera], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "READ_S", 0.2)
    front = camera()
    front.open()
    front.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "camera-front"]


def test_driver_that_holds_a_read_is_left_to_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(opencv, "JOIN_S", 0.05)
    held = threading.Event()
    device = FakeDevice(monkeypatch, grab=lambda: held.wait(PATIENCE_S))
    front = OpenCVCamera("front", OpenCVCameraConfig(index_or_path="/dev/null", warmup_s=0.05))
    with pytest.raises(CameraError, match="/dev/null gave no frame within"):
        front.open()
    held.set()
    assert device.released.wait(PATIENCE_S)
    assert "holds a read" in caplog.text


@pytest.mark.parametrize("settings", [{"width": 640, "height": 480}, {"height": 96}, {"width": 48, "rotation": 180}])
def test_another_size_is_refused(
    server: MjpegServer, camera: Callable[..., OpenCVCamera], settings: dict[str, int]
) -> None:
    with pytest.raises(CameraError, match=r"camera front: http://127.0.0.1:\d+/stream delivers 64x48, asked for"):
        camera(**settings).open()


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def test_server_that_is_not_there(camera: Callable[..., OpenCVCamera]) -> None:
    url = f"http://127.0.0.1:{closed_port()}/stream"
    with pytest.raises(CameraError) as caught:
        camera(index_or_path=url).open()
    assert str(caught.value) == f"camera front: {url} cannot be reached: Connection refused"
    with pytest.raises(CameraError) as caught:
        camera(index_or_path=url.replace("//", "//user:secret@")).open()
    assert str(caught.value) == f"camera front: {url} cannot be opened"


@pytest.mark.parametrize(
    ("status", "content_type", "sentence"),
    [(404, "text/plain", "answers 404 Not Found"), (200, "text/html", "answers with text/html, which is not video")],
)
def test_server_with_something_else(
    server: MjpegServer,
    camera: Callable[..., OpenCVCamera],
    capfd: pytest.CaptureFixture[str],
    status: int,
    content_type: str,
    sentence: str,
) -> None:
    server.status, server.content_type, server.greeting = status, content_type, []
    server.hang_up()
    server.hang_up()
    with pytest.raises(CameraError, match=f"camera front: {server.url} {sentence}"):
        camera().open()
    assert capfd.readouterr() == ("", "")  # OpenCV and FFmpeg keep quiet


def test_server_that_answers_and_shows_nothing(
    server: MjpegServer, camera: Callable[..., OpenCVCamera], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "CONNECT_S", 0.5)
    server.greeting = []
    with pytest.raises(CameraError, match=r"answers, but gave no frame within 0.1 s \(warmup_s\)"):
        camera(warmup_s=0.1).open()
    server.hang_up()


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (97, "camera front: /dev/video97 is not there; there "),
        ("97", "camera front: /dev/video97 is not there; there "),
        ("/dev/v4l/by-id/none", "camera front: /dev/v4l/by-id/none is not there; there "),
        ("/dev/null", "camera front: /dev/null cannot be opened: another program has it, or it captures no video"),
        ("none.avi", "camera front: none.avi is not there"),
        (__file__, f"camera front: {__file__} is not a video that OpenCV can read"),
        ("rtsp://127.0.0.1:1/x", "camera front: rtsp://127.0.0.1:1/x cannot be opened"),
    ],
)
def test_source_that_cannot_be(
    camera: Callable[..., OpenCVCamera], capfd: pytest.CaptureFixture[str], source: int | str, sentence: str
) -> None:
    with pytest.raises(CameraError) as caught:
        camera(index_or_path=source).open()
    assert str(caught.value).startswith(sentence)
    assert capfd.readouterr() == ("", "")


def test_permission_is_another_error(camera: Callable[..., OpenCVCamera], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(AccessError, match=r"camera front: no permission for /dev/null \(group video\)"):
        camera(index_or_path="/dev/null").open()


# A video file.


def test_video_file_plays_at_its_own_rate_over_and_over(tmp_path: Path) -> None:
    path = tmp_path / "clip.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 100.0, (64, 48))
    for number in range(10):
        writer.write(cv2.cvtColor(shade(3 * number), cv2.COLOR_RGB2BGR))
    writer.release()
    before_ns = time.monotonic_ns()
    with OpenCVCamera("front", OpenCVCameraConfig(index_or_path=str(path), width=64, height=48)) as front:
        frame = front.wait(24, PATIENCE_S)
        assert frame is not None
        assert shown(frame) == (frame.number - 1) % 10 * 3
        assert frame.time_ns - before_ns >= 0.24e9  # never faster than its own rate
        assert front.failures == 0


# Devices. No V4L2 device can be had in a test: the capture is a stand-in that remembers what it was asked.


class FakeDevice:
    """What cv2.VideoCapture would be for a driver that takes what `gives` does not say otherwise."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        gives: dict[int, float] | None = None,
        grab: Callable[[], bool] = lambda: True,
    ) -> None:
        self.asked: list[tuple[int, float]] = []
        self.released = threading.Event()
        self.grab = grab
        self._gives = gives or {}
        monkeypatch.setattr(cv2, "VideoCapture", lambda path, api: self)

    def isOpened(self) -> bool:
        return True

    def set(self, name: int, value: float) -> bool:
        self.asked.append((name, value))
        return True

    def get(self, name: int) -> float:
        return self._gives.get(name, dict(self.asked).get(name, 0.0))

    def retrieve(self) -> tuple[bool, npt.NDArray[np.uint8]]:
        return True, flat((1, 2, 3), 480, 640)

    def release(self) -> None:
        self.released.set()


MJPG, YUYV = (cv2.VideoWriter.fourcc(*name) for name in ("MJPG", "YUYV"))
DEVICE: dict[str, Any] = {"index_or_path": "/dev/null", "fourcc": "MJPG", "width": 640, "height": 480, "fps": 30}


def test_device_is_asked_for_fourcc_then_size_then_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice(monkeypatch)
    with OpenCVCamera("front", OpenCVCameraConfig(**DEVICE)) as front:
        assert front.shape == (480, 640)
    assert device.asked == [
        (cv2.CAP_PROP_FOURCC, MJPG),
        (cv2.CAP_PROP_FRAME_WIDTH, 640),
        (cv2.CAP_PROP_FRAME_HEIGHT, 480),
        (cv2.CAP_PROP_FPS, 30),
        (cv2.CAP_PROP_BUFFERSIZE, 1),
    ]
    assert device.released.is_set()


def test_device_turned_upright_is_asked_for_the_size_before_rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice(monkeypatch)
    upright = DEVICE | {"width": 480, "height": 640, "rotation": 90}
    with OpenCVCamera("front", OpenCVCameraConfig(**upright)) as front:
        assert front.shape == (640, 480)
    assert (cv2.CAP_PROP_FRAME_WIDTH, 640) in device.asked


def test_device_that_is_asked_nothing_gives_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice(monkeypatch, {cv2.CAP_PROP_FPS: 25.0})
    with OpenCVCamera("front", OpenCVCameraConfig(index_or_path="/dev/null")) as front:
        assert front.shape == (480, 640)
    assert device.asked == [(cv2.CAP_PROP_BUFFERSIZE, 1)]


@pytest.mark.parametrize(
    ("gives", "sentence"),
    [
        ({cv2.CAP_PROP_FPS: 25.0}, "gives fps 25, asked for 30; it offers MJPG 640x480 at 25, 60 fps"),
        ({cv2.CAP_PROP_FOURCC: YUYV}, "gives fourcc YUYV, asked for MJPG; it offers"),
        (
            {cv2.CAP_PROP_FRAME_WIDTH: 320, cv2.CAP_PROP_FRAME_HEIGHT: 240},
            "gives width 320, asked for 640; height 240, asked for 480; it offers",
        ),
    ],
)
def test_device_that_takes_something_else_is_refused_with_what_it_offers(
    monkeypatch: pytest.MonkeyPatch, gives: dict[int, float], sentence: str
) -> None:
    device = FakeDevice(monkeypatch, gives)
    monkeypatch.setattr(v4l2, "offers", lambda path: [v4l2.Offer("MJPG", 640, 480, (25.0, 60.0))])
    with pytest.raises(CameraError) as caught:
        OpenCVCamera("front", OpenCVCameraConfig(**DEVICE)).open()
    assert str(caught.value).startswith(f"camera front: /dev/null {sentence}")
    assert device.released.is_set()


def test_device_that_does_not_know_its_rate_is_judged_by_its_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeDevice(monkeypatch, {cv2.CAP_PROP_FPS: 0.0})
    with OpenCVCamera("front", OpenCVCameraConfig(**DEVICE)) as front:
        assert front.latest() is not None


DRIVER = {  # fourcc -> size -> intervals, as linux/videodev2.h's enumerations walk it
    "MJPG": {(640, 480): [(1, 25), (1, 60)], (1280, 720): [(1, 30)]},
    "YUYV": {(320, 240): [(1, 30), (1001, 30000)]},
}


def driver(fd: int, request: int, entry: bytearray) -> int:
    """The ioctls of a device that offers `DRIVER`."""
    index, given = struct.unpack_from("=II", entry)
    try:
        if request == 0xC0405602:  # VIDIOC_ENUM_FMT
            struct.pack_into("=4s", entry, 44, list(DRIVER)[index].encode())
            return 0
        sizes = DRIVER[given.to_bytes(4, "little").decode()]
        if request == 0xC02C564A:  # VIDIOC_ENUM_FRAMESIZES
            struct.pack_into("=III", entry, 8, 1, *list(sizes)[index])
            return 0
        assert request == 0xC034564B  # VIDIOC_ENUM_FRAMEINTERVALS
        struct.pack_into("=III", entry, 16, 1, *sizes[struct.unpack_from("=II", entry, 8)][index])
        return 0
    except IndexError:
        raise OSError(errno.EINVAL, "no more") from None


def test_offers_of_a_device() -> None:
    found = v4l2.offers("/dev/null", driver)
    assert [str(offer) for offer in found] == [
        "MJPG 640x480 at 25, 60 fps",
        "MJPG 1280x720 at 30 fps",
        "YUYV 320x240 at 30, 29.97 fps",
    ]
    assert v4l2.nearest(found, 640, 480) == "MJPG 640x480 at 25, 60 fps"
    assert v4l2.nearest(found, 300, 200, most=1) == "YUYV 320x240 at 30, 29.97 fps"


def test_offers_of_what_is_no_camera(tmp_path: Path) -> None:
    assert v4l2.offers("/dev/null") == []
    assert v4l2.offers(str(tmp_path / "none")) == []


def test_driver_that_never_ends_is_left() -> None:
    assert len(list(v4l2._entries(0, lambda *_: 0, 0, 64))) == 64
