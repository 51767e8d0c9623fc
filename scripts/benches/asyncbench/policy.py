"""A policy ready to be called in process, and the scene it acts in; a process loads each one once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import numpy as np

from edge_runtime.virtual_arm.renderer import Renderer
from edge_runtime.virtual_arm.scene import Scene
from edge_runtime.wire.messages import Floats, Observation, Policy
from policy_server import bundle
from policy_server.engines import open_engine
from policy_server.engines.providers import Runtime
from policy_server.serving.cleaning import KeyMap, prepare, preprocess
from scripts.benches.asyncbench.world import Places, View

BUNDLES = {"state": "act_so101_pick_place", "images": "act_so101_cubes"}


class LoadedPolicy:
    """`description` is what a server would offer; `lower` and `upper` the arm's range in joint units."""

    def __init__(self, name: str) -> None:
        loaded = bundle.load(bundle.locate(BUNDLES[name]))
        self.description: Policy = loaded.policy
        self.digest = loaded.policy.digest
        self._engine = open_engine(loaded, Runtime("cpu", 1))
        self._keys = KeyMap(
            bundle.features(loaded.policy), {c.name: bundle.IMAGES + c.name for c in loaded.policy.cameras}, False
        )
        self.scene = Scene()
        self.lower = self.scene.to_units(self.scene.lower)
        self.upper = self.scene.to_units(self.scene.upper)
        self.vectors = {vector.name: Places(self.scene) for vector in loaded.policy.extra_state}
        sizes = {(camera.height, camera.width) for camera in loaded.policy.cameras}
        self._renderer = Renderer(self.scene.model, *sizes.pop()) if sizes else None

    @property
    def sees(self) -> bool:
        return self._renderer is not None

    def views(self, now_ns: Callable[[], int]) -> Mapping[str, View]:
        """The cameras, by the policy's names, on the clock of a trial."""
        if self._renderer is None:
            return {}
        return {c.name: View(self._renderer, self.scene, c.name, now_ns) for c in self.description.cameras}

    def infer(self, observation: Observation) -> Floats:
        """The chunk for `observation`: (chunk, joints) float32, joint units."""
        batch = prepare([preprocess(observation, self._keys)])
        return np.ascontiguousarray(self._engine.infer(batch)[0])


@cache
def load(name: str) -> LoadedPolicy:
    return LoadedPolicy(name)
