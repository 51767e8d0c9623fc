"""How often a bundle solves the virtual arm's task with nothing in between: no bus, no wire, no clock.

    python -m scripts.benches.None policy_server/bundles/act_so101_pick_place --episodes=40

Each chunk is computed from the scene itself and its first `--actions` actions are executed before the next one is: what
is left to differ from training is the exported graph and the scene. For the shipped bundles LeRobot's own policy code
solves 34 (state) and 36 (images) of the seeds 0..39.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import numpy as np
import onnxruntime

from edge_runtime.virtual_arm.episode import Episode
from edge_runtime.virtual_arm.model import TICK_S
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path, help="folder with manifest.json")
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--actions", type=int, default=25, help="of each chunk")
    options = parser.parse_args()

    player = Player(options.bundle, options.actions)
    solved = []
    for seed in range(options.episodes):
        episode = player.play(seed)
        solved += [episode.ticks * TICK_S] if episode.success else []
        print(json.dumps(episode.as_dict()), flush=True)
    player.close()
    print(f"{len(solved)}/{options.episodes} solved, {statistics.fmean(solved):.2f} s on average")


if __name__ == "__main__":
    main()
