"""A bundle on the virtual arm's scene with nothing in between: no bus, no wire, no clock.

Each chunk is computed from the scene itself, and its first actions are executed before the next one is: what is left to
differ from training is the exported graph and the scene. LeRobot's own policy code solves 34 (state) and 36 (images) of
the seeds 0..39 with the shipped bundles.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime

from edge_runtime.virtual_arm.episode import Episode
from edge_runtime.virtual_arm.renderer import Renderer
from edge_runtime.virtual_arm.scene import FIXED_GOAL, Scene

IMAGES = "observation.images."
SIZE = 96


class Player:
    """The bundle in the folder `bundle`, in a scene of its own; the same seed goes the same way each time."""

    def __init__(self, bundle: Path, actions: int) -> None:
        graph = json.loads((bundle / "manifest.json").read_text())["graphs"]["policy"]
        self._session = onnxruntime.InferenceSession(bundle / graph, providers=["CPUExecutionProvider"])
        self._names = [feature.name for feature in self._session.get_inputs()]
        self._views = [name.removeprefix(IMAGES) for name in self._names if name.startswith(IMAGES)]
        self._actions = actions
        self._scene = Scene()
        self._renderer = Renderer(self._scene.model, SIZE, SIZE) if self._views else None

    def play(self, seed: int) -> Episode:
        """The whole episode of `seed`."""
        episode = self._scene.reset(seed, FIXED_GOAL if self._views else None)
        while not episode.done:
            (chunk,) = self._session.run(["action"], self._observe())
            for action in chunk[0, : self._actions]:
                if not episode.done:
                    self._scene.step(action.astype(np.float64))
        return episode

    def close(self) -> None:
        if self._renderer:
            self._renderer.close()

    def _observe(self) -> dict[str, np.ndarray]:
        values = {
            "observation.state": self._scene.joint_state().astype(np.float32),
            "observation.environment_state": self._scene.environment_state().astype(np.float32),
        }
        if self._renderer:
            values |= {IMAGES + view: self._renderer.render(self._scene.data, view) for view in self._views}
        return {name: values[name][np.newaxis] for name in self._names}
