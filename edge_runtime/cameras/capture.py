"""Opening a source of frames with OpenCV: what is asked for, in the order drivers need, and what came of it."""

from __future__ import annotations

import os
import urllib.error
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import cv2

from edge_runtime.cameras import v4l2
from edge_runtime.config import OpenCVCameraConfig
from edge_runtime.errors import AccessError, CameraError
from edge_runtime.program import direct

CONNECT_S = 2.0  # for a network camera to answer; its first frame then has `warmup_s`
READ_S = 2.0  # a network camera silent for longer has ended


@dataclass(frozen=True)
class Source:
    """Where frames come from: `path` is what OpenCV opens."""

    kind: Literal["device", "url", "file"]
    path: str

    @classmethod
    def of(cls, index_or_path: int | str) -> Source:
        text = str(index_or_path)
        if text.isdigit():
            return cls("device", f"/dev/video{text}")
        if "://" in text:
            return cls("url", text)
        return cls("device" if text.startswith("/dev/") else "file", text)

    def __str__(self) -> str:
        """For logs: without the password that a URL may hold."""
        if self.kind != "url":
            return self.path
        parts = urlsplit(self.path)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()

    def connect(self, config: OpenCVCameraConfig) -> cv2.VideoCapture:
        """The opened capture. Raises CameraError, or AccessError for want of permission, with the nearest help."""
        _quieten()
        if self.kind == "url":
            return self._connect_url(config)
        if not Path(self.path).exists():
            raise CameraError(f"{self.path} is not there{_others() if self.kind == 'device' else ''}")
        if not (Path(self.path).is_char_device() if self.kind == "device" else Path(self.path).is_file()):
            raise CameraError(f"{self.path} is not a {'camera' if self.kind == 'device' else 'video file'}")
        if not os.access(self.path, os.R_OK | (os.W_OK if self.kind == "device" else 0)):
            raise AccessError(f"no permission for {self.path}" + " (group video)" * (self.kind == "device"))
        return self._connect_device(config) if self.kind == "device" else self._connect_file()

    def _connect_device(self, config: OpenCVCameraConfig) -> cv2.VideoCapture:
        capture = cv2.VideoCapture(str(Path(self.path).resolve()), cv2.CAP_V4L2)
        if not capture.isOpened():
            raise CameraError(f"{self.path} cannot be opened: another program has it, or it captures no video")
        try:
            self._ask(capture, config)
        except CameraError:
            capture.release()
            raise
        return capture

    def _ask(self, capture: cv2.VideoCapture, config: OpenCVCameraConfig) -> None:
        """Fourcc, then size, then rate: each limits what may follow. Raises CameraError when the driver took others."""
        height, width = capture_size(config)
        if config.fourcc:
            capture.set(cv2.CAP_PROP_FOURCC, cv2.VideoWriter.fourcc(*config.fourcc))
        if width and height:
            capture.set(cv2.CAP_PROP_FRAME_WIDTH, width)
            capture.set(cv2.CAP_PROP_FRAME_HEIGHT, height)
        if config.fps:
            capture.set(cv2.CAP_PROP_FPS, config.fps)
        capture.set(cv2.CAP_PROP_BUFFERSIZE, 1)
        got_fourcc = int(capture.get(cv2.CAP_PROP_FOURCC)).to_bytes(4, "little", signed=True).decode("ascii", "replace")
        got_width, got_height = int(capture.get(cv2.CAP_PROP_FRAME_WIDTH)), int(capture.get(cv2.CAP_PROP_FRAME_HEIGHT))
        got_fps = capture.get(cv2.CAP_PROP_FPS)
        wrong = [
            f"{what} {got}, asked for {asked}"
            for what, got, asked, differs in (
                ("fourcc", got_fourcc, config.fourcc, got_fourcc != config.fourcc),
                ("width", got_width, width, got_width != width),
                ("height", got_height, height, got_height != height),
                # A driver that knows no rate says 0: then the frames that come are the judge.
                ("fps", f"{got_fps:g}", config.fps, got_fps > 0 and abs(got_fps - (config.fps or 0)) > 0.5),
            )
            if asked and differs
        ]
        if wrong:
            offered = v4l2.nearest(v4l2.offers(self.path), width, height)
            raise CameraError(f"{self.path} gives {'; '.join(wrong)}" + (f"; it offers {offered}" if offered else ""))

    def _connect_url(self, config: OpenCVCameraConfig) -> cv2.VideoCapture:
        direct.tell_ffmpeg()
        # Opening decodes the first frames to learn what they are. One decoding thread: more would each hold one back.
        capture = cv2.VideoCapture(
            self.path,
            cv2.CAP_FFMPEG,
            [
                *(cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, int(1000 * (CONNECT_S + config.warmup_s))),
                *(cv2.CAP_PROP_READ_TIMEOUT_MSEC, int(1000 * READ_S)),
                *(cv2.CAP_PROP_N_THREADS, 1),
            ],
        )
        if not capture.isOpened():
            raise CameraError(f"{self} {_what_is_wrong_with(self.path, config.warmup_s)}")
        return capture

    def _connect_file(self) -> cv2.VideoCapture:
        capture = cv2.VideoCapture(self.path, cv2.CAP_FFMPEG)
        if not capture.isOpened():
            raise CameraError(f"{self.path} is not a video that OpenCV can read")
        return capture


def capture_size(config: OpenCVCameraConfig) -> tuple[int | None, int | None]:
    """(height, width) before rotation."""
    turned = config.rotation in (90, -90, 270)
    return (config.width, config.height) if turned else (config.height, config.width)


def _others() -> str:
    found = sorted(str(path) for path in Path("/dev").glob("video*"))
    return f"; there are {', '.join(found)}" if found else "; there is no /dev/video at all"


def _what_is_wrong_with(url: str, warmup_s: float) -> str:
    """Why a URL did not open, where asking it again can tell."""
    if not url.startswith(("http://", "https://")) or "@" in urlsplit(url).netloc:
        return "cannot be opened"
    try:
        with direct.urlopen(url, CONNECT_S) as answer:
            kind = answer.headers.get_content_type()
    except urllib.error.HTTPError as error:
        return f"answers {error.code} {error.reason}"
    except OSError as error:
        reason = getattr(error, "reason", error)
        return f"cannot be reached: {getattr(reason, 'strerror', None) or reason}"
    if not kind.startswith(("multipart/", "image/", "video/")):
        return f"answers with {kind}, which is not video"
    return f"answers, but gave no frame within {warmup_s:g} s (warmup_s)"


def _quieten() -> None:
    """OpenCV and its FFmpeg write to stderr by themselves; unless told otherwise, our own sentences say it."""
    if "OPENCV_LOG_LEVEL" not in os.environ:
        cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")  # AV_LOG_QUIET, read when FFmpeg is first used
    cv2.setNumThreads(1)  # the cores belong to the loop and the other cameras
