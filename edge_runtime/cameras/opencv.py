"""A camera through OpenCV, LeRobot's `opencv`: a thread keeps reading, and only the newest frame is kept."""

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import cv2
import numpy as np
import numpy.typing as npt

from edge_runtime.cameras import CameraFrame
from edge_runtime.cameras.capture import Source
from edge_runtime.config import OpenCVCameraConfig
from edge_runtime.errors import CameraError, EdgeRuntimeError
from edge_runtime.program.spell import Spell

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger(__name__)

OPEN_S = 10.0  # for a source to open at all
JOIN_S = 3.0  # V4L2 can hold a read for 10 s: the thread is then left to end by itself
BACK_OFF_S = (0.1, 0.2, 0.5, 1.0, 2.0)
RATE_WINDOW_S = 2.0
SLOW, WELL = 0.9, 0.95  # of the rate asked for: a warning below the one, an end to it above the other
_SAMPLES = 64  # a side, of the pixels that tell whether a frame changed

_ROTATIONS = {
    90: cv2.ROTATE_90_CLOCKWISE,
    180: cv2.ROTATE_180,
    -90: cv2.ROTATE_90_COUNTERCLOCKWISE,
    270: cv2.ROTATE_90_COUNTERCLOCKWISE,
}


class OpenCVCamera:
    """A V4L2 device, a URL or a video file, as `config.index_or_path` names it.

    What was asked of a device is compared with what its driver took. A URL or a file cannot be asked: its frames must
    have the size, and its rate is judged by the frames that come. Width and height are those after rotation, as in
    LeRobot. A file plays at its own rate, over and over. A source that ends is opened again, with back-off.
    """

    def __init__(
        self, name: str, config: OpenCVCameraConfig, *, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self.name = name
        self.frames = 0
        self.failures = 0
        self._config = config
        self._clock_ns = clock_ns
        self._source = Source.of(config.index_or_path)
        self._news = threading.Condition()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._connected = False
        self._failure: EdgeRuntimeError | None = None  # of the first attempt; later ones are tried again
        self._latest: CameraFrame | None = None
        self._sample = 0
        self._since_ns = 0  # the first frame of this connection
        self._changes: deque[int] = deque()  # when frames changed, over the last RATE_WINDOW_S
        self._trouble = Spell()
        self._slow = False

    def open(self) -> None:
        """Returns with the first frame there. Raises CameraError, or AccessError for want of permission."""
        if self._thread is not None:
            return
        self._stopping.clear()
        self._connected, self._failure, self._latest = False, None, None
        self._thread = threading.Thread(target=self._run, name=f"camera-{self.name}", daemon=True)
        self._thread.start()
        warmup_s = self._config.warmup_s
        with self._news:
            self._news.wait_for(lambda: self._connected or self._failure, OPEN_S)
            self._news.wait_for(lambda: self._latest or self._failure, warmup_s)
            failure = self._failure
            if self._latest is None and failure is None:
                failure = CameraError(f"{self._source} gave no frame within {warmup_s:g} s (warmup_s)")
        if failure is not None:
            self.close()
            raise type(failure)(f"camera {self.name}: {failure}") from failure

    def close(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(JOIN_S)
            if self._thread.is_alive():
                log.warning("camera %s: the driver holds a read; left to itself", self.name)
            self._thread = None

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def latest(self) -> CameraFrame | None:
        return self._latest

    def wait(self, after: int, timeout_s: float) -> CameraFrame | None:
        """The newest frame as soon as its number is greater than `after`; None when that takes longer."""
        with self._news:
            self._news.wait_for(lambda: self._latest is not None and self._latest.number > after, timeout_s)
            return self._latest if self._latest is not None and self._latest.number > after else None

    @property
    def shape(self) -> tuple[int, int]:
        if self._latest is None:
            raise CameraError(f"camera {self.name} is not open")
        height, width, _ = self._latest.pixels.shape
        return height, width

    @property
    def delivered_fps(self) -> float:
        with self._news:
            return self._rate(self._clock_ns())

    def _run(self) -> None:
        attempts = 0
        while not self._stopping.is_set():
            try:
                self._read()
            except Exception as error:  # of any kind: while this thread lives, the camera may come back
                if self._latest is None:
                    with self._news:
                        self._failure = error if isinstance(error, EdgeRuntimeError) else CameraError(str(error))
                        self._news.notify_all()
                    return
                self.failures += 1
                # A connection that ended before the spell was over is one more attempt, whatever it delivered.
                attempts = attempts + 1 if self._trouble.lasts else 0
                if self._trouble.fails(self._clock_ns() / 1e9):
                    log.warning("camera %s: %s; trying again", self.name, error)
                self._stopping.wait(BACK_OFF_S[min(attempts, len(BACK_OFF_S) - 1)])

    def _read(self) -> None:
        """Publish frames until told to stop, or a file has ended. Raises CameraError when they cease to come."""
        capture = self._source.connect(self._config)
        try:
            with self._news:
                self._connected = True
                self._news.notify_all()
            self._since_ns = 0
            period_s = 1 / (capture.get(cv2.CAP_PROP_FPS) or 30) if self._source.kind == "file" else 0.0
            due_s = time.monotonic()
            while not self._stopping.wait(max(0.0, due_s - time.monotonic()) if period_s else 0.0):
                due_s += period_s
                if not capture.grab():
                    if period_s and self._since_ns:
                        return
                    raise CameraError(f"{self._source} stopped delivering frames")
                time_ns = self._clock_ns()  # before the decoding, which takes its time
                done, pixels = capture.retrieve()
                if done and pixels is not None and pixels.size:
                    self._publish(self._develop(pixels), time_ns)
                else:
                    self.failures += 1  # one damaged frame; the next is waited for by grab
        finally:
            capture.release()

    def _develop(self, bgr: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        """Turned, in the colours asked for, and of the size asked for, or CameraError."""
        config = self._config
        if bgr.ndim != 3 or bgr.shape[2] != 3 or bgr.dtype != np.uint8:
            raise CameraError(f"{self._source} delivers {bgr.dtype} of shape {bgr.shape}, which is no colour picture")
        if config.rotation:
            bgr = cv2.rotate(bgr, _ROTATIONS[config.rotation])
        height, width = bgr.shape[:2]
        if (config.height or height, config.width or width) != (height, width):
            raise CameraError(f"{self._source} delivers {width}x{height}, asked for {config.width}x{config.height}")
        if self._latest is not None and self._latest.pixels.shape[:2] != (height, width):
            raise CameraError(f"{self._source} delivers {width}x{height}, no longer {self.shape[1]}x{self.shape[0]}")
        return cast(npt.NDArray[np.uint8], bgr if config.color_mode == "bgr" else cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB))

    def _publish(self, pixels: npt.NDArray[np.uint8], time_ns: int) -> None:
        height, width, _ = pixels.shape
        sample = zlib.crc32(pixels[:: -(-height // _SAMPLES), :: -(-width // _SAMPLES)].tobytes())
        with self._news:
            changed = self._latest is None or sample != self._sample or not np.array_equal(pixels, self._latest.pixels)
            number = (self._latest.number if self._latest else 0) + changed
            since_ns = time_ns if changed or self._latest is None else self._latest.since_ns
            self._latest, self._sample = CameraFrame(pixels, time_ns, number, since_ns), sample
            self.frames += 1
            self._since_ns = self._since_ns or time_ns
            if changed:
                self._changes.append(time_ns)
            rate = self._rate(time_ns)
            self._news.notify_all()
        if self._trouble.succeeds(time_ns / 1e9):
            log.info("camera %s is back", self.name)
        self._judge(rate, time_ns)

    def _rate(self, now_ns: int) -> float:
        """Changed frames per second over the window that ends now, of which the connection may cover a part."""
        start_ns = max(now_ns - int(RATE_WINDOW_S * 1e9), self._since_ns)
        while self._changes and self._changes[0] <= start_ns:
            self._changes.popleft()
        return len(self._changes) * 1e9 / (now_ns - start_ns) if now_ns > start_ns else 0.0

    def _judge(self, rate: float, now_ns: int) -> None:
        """Say once when fewer frames come than were asked for, and once when that is over."""
        asked = self._config.fps
        if not asked or now_ns - self._since_ns < RATE_WINDOW_S * 1e9:
            return
        if not self._slow and rate < SLOW * asked:
            self._slow = True
            log.warning("camera %s delivers %.1f changing frames per second, asked for %d", self.name, rate, asked)
        elif self._slow and rate > WELL * asked:
            self._slow = False
            log.info("camera %s delivers %.1f changing frames per second again", self.name, rate)
