"""Pictures of a scene without a screen: EGL, else OSMesa."""

from __future__ import annotations

import ctypes
import importlib
from types import TracebackType
from typing import Any

import mujoco
import numpy as np

from edge_runtime.errors import ConfigError

# Tried in order. Loaded here, as needed, and not through the variable MUJOCO_GL, which would have to be set before
# anything imports mujoco.
_PLATFORMS = {"libEGL.so.1": "mujoco.egl", "libOSMesa.so.8": "mujoco.osmesa"}
NO_GL = "no cameras: no headless GL here, install libegl1 or libosmesa6"


def headless_gl() -> Any:
    """The GLContext class of the first platform present. Raises ConfigError (`NO_GL`) where there is none."""
    for library, module in _PLATFORMS.items():
        try:
            ctypes.CDLL(library)
            return importlib.import_module(module).GLContext
        except (OSError, ImportError, AttributeError):  # AttributeError: how PyOpenGL says that a library is missing
            continue
    raise ConfigError(NO_GL)


class Renderer:
    """Draws `model` at one size; belongs to the thread that made it, which must also close it.

    Raises ConfigError where no headless GL works.
    """

    def __init__(self, model: Any, height: int, width: int) -> None:
        self._model = model
        self._rectangle = mujoco.MjrRect(0, 0, width, height)
        self._geoms = mujoco.MjvScene(model, maxgeom=200)
        self._options = mujoco.MjvOption()
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        context = headless_gl()
        try:
            self._gl = context(width, height)
            self._gl.make_current()
        except (ImportError, RuntimeError) as error:  # what mujoco.egl raises without a driver
            raise ConfigError(f"{NO_GL} ({error})") from error
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_resizeOffscreen(width, height, self._context)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._flipped = np.empty((height, width, 3), np.uint8)

    def render(self, data: Any, view: str) -> np.ndarray:
        """What camera `view` of the model sees in `data`: (height, width, 3) uint8, RGB."""
        self._camera.fixedcamid = self._model.camera(view).id
        mujoco.mjv_updateScene(
            self._model, data, self._options, None, self._camera, mujoco.mjtCatBit.mjCAT_ALL, self._geoms
        )
        mujoco.mjr_render(self._rectangle, self._geoms, self._context)
        mujoco.mjr_readPixels(self._flipped, None, self._rectangle, self._context)
        return self._flipped[::-1].copy()  # GL's rows go up

    def close(self) -> None:
        self._context.free()
        self._gl.free()

    def __enter__(self) -> Renderer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
