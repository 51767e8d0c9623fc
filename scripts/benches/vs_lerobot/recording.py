"""Pictures for both sides: the policy at work in the virtual scene, seen by two cameras of 480×640; needs `demo`.

The same pictures tell what compression costs: how far the policy's actions move when it sees JPEG instead of pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from edge_runtime.virtual_arm.renderer import Renderer
from edge_runtime.virtual_arm.scene import FIXED_GOAL, Scene
from edge_runtime.wire.frames import compress, pixels
from edge_runtime.wire.messages import Frame
from policy_server import bundle
from policy_server.bundle import IMAGES, STATE
from policy_server.engines import open_engine
from policy_server.engines.providers import Runtime
from scripts.benches.vs_lerobot import frames

HEIGHT, WIDTH = 480, 640
SEEDS, LOOKS, STEPS = 8, 4, 25
SHOWN = 8  # pictures that the clients show in turn
BODY = slice(0, 5)  # the joints in degrees

Pictures = dict[str, frames.Pixels]
Way = Callable[[frames.Pixels], tuple[frames.Pixels, int]]  # a picture as it arrives, and in how many bytes
Infer = Callable[[npt.NDArray[np.floating], Pictures], npt.NDArray[np.float32]]


@dataclass(frozen=True)
class Look:
    """One observation and what the policy answers."""

    state: npt.NDArray[np.float32]
    views: Pictures
    actions: npt.NDArray[np.float32]  # (rows, joints)


@dataclass(frozen=True)
class Fidelity:
    """What a way of compressing costs, over all looks: bytes of one look, and by how much actions move in degrees."""

    name: str
    bytes_: float
    times_less: float
    mean: float
    p99: float
    largest: float

    def __str__(self) -> str:
        return (
            f"{self.name:22} {self.bytes_:9.0f} bytes, 1/{self.times_less:<5.1f} "
            f"action change mean {self.mean:.3f}°, p99 {self.p99:.2f}°, largest {self.largest:.2f}°"
        )


def record(path: Path, folder: Path) -> tuple[list[Look], Infer]:
    """The policy of the bundle at `path` at work on SEEDS scenes; the first looks go to `folder` for the clients."""
    infer = _policy(path)
    scene = Scene()
    looks = []
    with Renderer(scene.model, HEIGHT, WIDTH) as renderer:
        for seed in range(SEEDS):
            scene.reset(seed, FIXED_GOAL)
            for _ in range(LOOKS):
                views = {view: np.ascontiguousarray(renderer.render(scene.data, view)) for view in frames.VIEWS}
                state = scene.joint_state().astype(np.float32)
                looks.append(Look(state, views, infer(state, views)))
                for row in looks[-1].actions[:STEPS]:
                    scene.step(row)
    frames.save(folder, {view: np.stack([look.views[view] for look in looks[:SHOWN]]) for view in frames.VIEWS})
    return looks, infer


def fidelity(
    looks: list[Look], infer: Infer, qualities: tuple[int, ...], halved: tuple[int, ...] = ()
) -> list[Fidelity]:
    """As the wire compresses (4:4:4), then with colours at half the resolution (4:2:0); ±1 of noise to compare with."""
    random = np.random.default_rng(0)

    def noisy(picture: frames.Pixels) -> tuple[frames.Pixels, int]:
        shifted = picture + random.integers(-1, 2, picture.shape, np.int16)
        return np.clip(shifted, 0, 255).astype(np.uint8), picture.nbytes

    ways: dict[str, Way] = {"±1 noise, raw": noisy}
    ways |= {f"JPEG {quality} 4:4:4": partial(_as_on_the_wire, quality=quality) for quality in qualities}
    ways |= {f"JPEG {quality} 4:2:0": partial(_at_half, quality=quality) for quality in halved}
    return [_cost(name, looks, infer, way) for name, way in ways.items()]


def _cost(name: str, looks: list[Look], infer: Infer, way: Way) -> Fidelity:
    sizes, changes = [], []
    for look in looks:
        seen = {view: way(picture) for view, picture in look.views.items()}
        sizes.append(sum(size for _, size in seen.values()))
        actions = infer(look.state, {view: picture for view, (picture, _) in seen.items()})
        changes.append(np.abs(actions - look.actions)[:, BODY])
    raw = sum(picture.nbytes for picture in looks[0].views.values())
    mean = float(np.mean(sizes))
    return Fidelity(
        name,
        mean,
        raw / mean,
        float(np.mean(changes)),
        float(np.percentile(changes, 99)),
        float(np.max(changes)),
    )


def _as_on_the_wire(picture: frames.Pixels, quality: int) -> tuple[frames.Pixels, int]:
    frame = compress(Frame.raw("view", picture), quality)
    return np.array(pixels(frame)), len(frame.data)


def _at_half(picture: frames.Pixels, quality: int) -> tuple[frames.Pixels, int]:
    sampling = (cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420)
    _, data = cv2.imencode(".jpg", picture[..., ::-1], (cv2.IMWRITE_JPEG_QUALITY, quality, *sampling))
    return np.asarray(cv2.imdecode(data, cv2.IMREAD_COLOR_RGB), np.uint8), data.nbytes


def _policy(path: Path) -> Infer:
    """Pictures are squeezed to what the policy takes, without antialiasing, as an exported graph does it."""
    loaded = bundle.load(path)
    engine = open_engine(loaded, Runtime("cpu", threads=1))
    sizes = {camera.name: (camera.width, camera.height) for camera in loaded.policy.cameras}

    def infer(state: npt.NDArray[np.floating], views: Pictures) -> npt.NDArray[np.float32]:
        batch: dict[str, npt.NDArray[Any]] = {
            STATE: state[None].astype(np.float32),
            **{IMAGES + view: cv2.resize(picture, sizes[view])[None] for view, picture in views.items()},
        }
        return np.asarray(engine.infer(batch)[0])

    return infer
