"""What the qualities of `jpeg_quality: auto` cost a policy that sees: by how much its actions move; needs `demo`.

python -m scripts.benches.jpeg             # 32 looks
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from edge_runtime.link.uplink import BEST_QUALITY, QUALITIES
from policy_server import bundle
from scripts.benches.vs_lerobot import recording
from scripts.rig.bench import reach, start

ALLOWED = 1.0  # degrees, at the best quality


@dataclass
class JpegConfig:
    """One line a quality, colours in full; of the policy that the bundle holds, two cameras of 640x480."""

    bundle: str = "act_so101_cubes"  # a folder, or one of those that are shipped
    quick: bool = False  # the best and the worst quality alone


def main(config: JpegConfig) -> None:
    with tempfile.TemporaryDirectory(prefix="jpeg-") as folder:
        looks, infer = recording.record(bundle.locate(config.bundle), Path(folder))
    qualities = (BEST_QUALITY, min(QUALITIES)) if config.quick else tuple(QUALITIES)
    found = recording.fidelity(looks, infer, qualities)
    print(*found, sep="\n")
    best = next(each for each in found if each.name == f"JPEG {BEST_QUALITY} 4:4:4")
    said = f"actions move by {best.largest:.2f} degrees at most at {BEST_QUALITY}, {ALLOWED:g} allowed"
    reach(said, best.largest <= ALLOWED)


if __name__ == "__main__":
    start(JpegConfig, main)
