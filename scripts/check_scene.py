"""How often a bundle solves the virtual arm's task with nothing in between: no bus, no wire, no clock.

    python scripts/check_scene.py policy_server/bundles/act_so101_pick_place --episodes=40

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

from edge_runtime.virtual_arm.renderer import Renderer
from edge_runtime.virtual_arm.scene import FIXED_GOAL, Scene

SIZE = 96


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path, help="folder with manifest.json")
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--actions", type=int, default=25, help="of each chunk")
    options = parser.parse_args()

    graph = json.loads((options.bundle / "manifest.json").read_text())["graphs"]["policy"]
    session = onnxruntime.InferenceSession(options.bundle / graph, providers=["CPUExecutionProvider"])
    names = [feature.name for feature in session.get_inputs()]
    views = [name.removeprefix("observation.images.") for name in names if name.startswith("observation.images.")]
    scene = Scene()
    renderer = Renderer(scene.model, SIZE, SIZE) if views else None

    def observe() -> dict[str, np.ndarray]:
        values = {
            "observation.state": scene.joint_state().astype(np.float32),
            "observation.environment_state": scene.environment_state().astype(np.float32),
        }
        for view in views:
            values[f"observation.images.{view}"] = renderer.render(scene.data, view)
        return {name: values[name][np.newaxis] for name in names}

    solved = []
    for seed in range(options.episodes):
        episode = scene.reset(seed, FIXED_GOAL if views else None)
        while not episode.done:
            (chunk,) = session.run(["action"], observe())
            for action in chunk[0, : options.actions]:
                if not episode.done:
                    scene.step(action.astype(np.float64))
        solved += [episode.as_dict()["time_s"]] if episode.success else []
        print(json.dumps(episode.as_dict()), flush=True)
    if renderer:
        renderer.close()
    print(f"{len(solved)}/{options.episodes} solved, {statistics.fmean(solved):.2f} s on average")


if __name__ == "__main__":
    main()
