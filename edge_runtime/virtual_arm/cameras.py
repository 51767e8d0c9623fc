"""The scene's cameras as JPEG frames, drawn by a thread of their own and only while somebody watches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any

import cv2
import mujoco
import numpy as np

from edge_runtime.errors import ConfigError
from edge_runtime.virtual_arm.renderer import Renderer

_REDRAW_S = 1.0
_JPEG = [cv2.IMWRITE_JPEG_QUALITY, 95, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444]


class Cameras:
    """Streams of the views of a scene; `views` maps a stream's name to a camera of the model.

    `snapshot` copies the scene's present state into the MjData it is given. `noise_seed` of None turns off the ±1 of
    sensor noise, without which a still scene cannot be told from a camera that has stopped. A context manager: entering
    raises ConfigError where no headless GL works.
    """

    def __init__(
        self,
        model: Any,
        snapshot: Callable[[Any], None],
        views: dict[str, str],
        *,
        height: int = 96,
        width: int = 96,
        fps: float = 30.0,
        noise_seed: int | None = 0,
    ) -> None:
        self.views = views
        self._model = model
        self._snapshot = snapshot
        self._size = height, width
        self._period_s = 1 / fps
        self._noise = None if noise_seed is None else np.random.default_rng(noise_seed)
        self._changed = threading.Condition()
        self._watchers = dict.fromkeys(views, 0)
        self._frames = dict.fromkeys(views, (0, b""))  # number and JPEG of the newest
        self._ready = False
        self._failure: ConfigError | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="virtual-cameras", daemon=True)

    def watch(self, name: str) -> Generator[bytes, None, None]:
        """Frames of stream `name` from now on, the newest each time; ends when the cameras close."""
        with self._changed:
            self._watchers[name] += 1
            seen = self._frames[name][0]
            self._changed.notify_all()
        try:
            while newer := self._newer_than(name, seen):
                seen, jpeg = newer
                yield jpeg
        finally:
            with self._changed:
                self._watchers[name] -= 1

    def redraw(self) -> None:
        """Wait until every viewer has been given the scene as it is now."""
        with self._changed:
            # The next frame may have been begun before; the one after it was not.
            due = {name: self._frames[name][0] + 2 for name in self.watched}
            self._changed.wait_for(
                lambda: self._closed or all(self._frames[name][0] >= due[name] for name in due if self._watchers[name]),
                _REDRAW_S,
            )

    @property
    def watched(self) -> list[str]:
        return [name for name, count in self._watchers.items() if count]

    def __enter__(self) -> Cameras:
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._closed)
        if not self._ready:
            raise self._failure or ConfigError("no cameras: their thread has failed")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        self._thread.join()

    def _newer_than(self, name: str, number: int) -> tuple[int, bytes] | None:
        """Waits for a frame after `number`; None when closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._frames[name][0] > number)
            return None if self._closed else self._frames[name]

    def _run(self) -> None:
        try:
            with Renderer(self._model, *self._size) as renderer:
                self._draw(renderer)
        except ConfigError as error:
            self._failure = error
        finally:  # however it ends, no viewer waits for another frame
            self._close()

    def _draw(self, renderer: Renderer) -> None:
        data = mujoco.MjData(self._model)
        with self._changed:
            self._ready = True
            self._changed.notify_all()
        due = time.monotonic()
        while self._wait_for_watchers(due):
            self._snapshot(data)
            for name in self.watched:
                self._publish(name, self._encode(renderer.render(data, self.views[name])))
            due = max(due + self._period_s, time.monotonic())

    def _close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _wait_for_watchers(self, due: float) -> bool:
        """True at `due`, or later when there is somebody to see it; False when closed."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._closed, due - time.monotonic()):
                self._changed.wait_for(lambda: self._closed or self.watched)
            return not self._closed

    def _encode(self, frame: np.ndarray) -> bytes:
        if self._noise is not None:
            noise = self._noise.integers(-1, 2, frame.shape, np.int16)
            frame = np.clip(frame + noise, 0, 255).astype(np.uint8)
        _, jpeg = cv2.imencode(".jpg", cv2.cvtColor(frame, cv2.COLOR_RGB2BGR), _JPEG)
        return jpeg.tobytes()

    def _publish(self, name: str, jpeg: bytes) -> None:
        with self._changed:
            self._frames[name] = self._frames[name][0] + 1, jpeg
            self._changed.notify_all()
