"""The README's moving picture: the virtual arm, sequential beside asynchronous, on the same clock and the same scene.

python -m scripts.rig.moving_picture --output=docs/figures/arm.gif
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from edge_runtime.virtual_arm.renderer import Renderer
from edge_runtime.wire.messages import Pixels
from scripts.benches.asyncbench import policy
from scripts.benches.asyncbench.cell import Cell
from scripts.benches.asyncbench.link import FPS
from scripts.benches.asyncbench.method import resolve
from scripts.benches.asyncbench.trial import Trial
from scripts.rig.bench import start

HEIGHT, WIDTH = 240, 320
BAR = 46  # pixels below a picture: its words, and the queue
EVERY = 2  # ticks a picture
COLOURS = 160
LAST_MS = 2500  # how long the last picture stands
INK, LIGHT, FULL, EMPTY = (40, 40, 40), (225, 225, 225), (0, 114, 178), (213, 94, 0)


@dataclass
class PictureConfig:
    """python -m scripts.rig.moving_picture: a GIF of two runs side by side."""

    output: Path = Path("arm.gif")
    seed: int = 1
    link: str = "constant-300"


def film(method: str, config: PictureConfig) -> list[Pixels]:
    """The arm after each EVERY ticks of one episode, with the time and the level of the queue."""
    loaded = policy.load("state")
    cell = Cell("state", "still", loaded.description.chunk_size, config.link, method, "auto")
    trial = Trial(loaded, resolve(method)(), cell, config.seed)
    pictures: list[Pixels] = []
    with Renderer(loaded.scene.model, HEIGHT, WIDTH) as renderer:

        def draw() -> None:
            tick = len(trial.queue)
            if tick % EVERY == 0:
                level = trial.queue[-1][0] / loaded.description.chunk_size
                pictures.append(captioned(renderer.render(loaded.scene.data, "static"), method, tick / FPS, level))

        trial.run(after_tick=draw)
    return pictures


def captioned(picture: Pixels, method: str, seconds: float, level: float) -> Pixels:
    below = np.full((BAR, WIDTH, 3), 255, np.uint8)
    name = "sequential" if method == "sequential" else "asynchronous"
    cv2.putText(below, f"{name}  {seconds:4.1f} s", (8, 18), cv2.FONT_HERSHEY_SIMPLEX, 0.5, INK, 1, cv2.LINE_AA)
    cv2.rectangle(below, (8, 28), (WIDTH - 8, 38), LIGHT, -1)
    if level > 0:
        cv2.rectangle(below, (8, 28), (8 + round((WIDTH - 16) * min(level, 1.0)), 38), FULL, -1)
    else:
        cv2.putText(below, "stands still", (WIDTH - 96, 18), cv2.FONT_HERSHEY_SIMPLEX, 0.45, EMPTY, 1, cv2.LINE_AA)
    return np.vstack([picture, below])


def main(config: PictureConfig) -> None:
    left, right = film("sequential", config), film("linear_blend", config)
    length = max(len(left), len(right))
    frames = [
        Image.fromarray(np.hstack([side[min(number, len(side) - 1)] for side in (left, right)])).quantize(COLOURS)
        for number in range(length)
    ]
    times = [round(1000 * EVERY / FPS)] * (length - 1) + [LAST_MS]
    frames[0].save(config.output, save_all=True, append_images=frames[1:], duration=times, loop=0, optimize=True)
    print(f"{config.output}: {length} pictures, {config.output.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    start(PictureConfig, main)
