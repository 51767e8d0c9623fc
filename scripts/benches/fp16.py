"""Whether weights in half the bytes cost success: the images bundle in fp16 against fp32, on the same seeds.

python -m scripts.benches.fp16 --whole=out/act_so101_cubes_fp32                 # 100 seeds, three minutes
python -m scripts.benches.fp16 --checkpoint=DIR --export_python=.venv-export/bin/python
python -m scripts.benches.fp16 --quick ...                                     # 10 seeds

The closed loop is that of `rig.scene_player`: no bus, no wire, no clock, so that the weights alone differ. The test
is McNemar's, exact and one-sided: the chance of so many losses among the seeds on which the two differ.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from edge_runtime.errors import UsageError
from edge_runtime.tools.demo.comparison import mcnemar
from edge_runtime.virtual_arm.model import TICK_S
from policy_server import bundle
from scripts.rig.bench import reach, start
from scripts.rig.scene_player import Player

ACTIONS = 25  # of each chunk, before the next one


@dataclass
class Fp16Config:
    """The fp16 bundle against the fp32 one of the same checkpoint."""

    half: str = "act_so101_cubes"  # the fp16 bundle; by default the shipped one
    whole: Path | None = None  # the fp32 bundle of the same checkpoint
    checkpoint: Path | None = None  # instead of `whole`: what to export it from
    export_python: Path = Path(sys.executable)  # of an environment with edge-runtime[export]
    seeds: int = 100
    quick: bool = False  # 10 seeds

    def __post_init__(self) -> None:
        if (self.whole is None) == (self.checkpoint is None):
            raise UsageError("whole, checkpoint: one of the two is needed")


def main(config: Fp16Config) -> int:
    with tempfile.TemporaryDirectory(prefix="bench-fp16-") as work:
        whole = config.whole or Path(work) / "whole"
        if config.checkpoint:
            export(config.checkpoint, config.export_python, whole)
        return compare(bundle.locate(config.half), whole, 10 if config.quick else config.seeds)


def export(checkpoint: Path, python: Path, output: Path) -> None:
    """Write the fp32 bundle of `checkpoint`."""
    stated = [f"--output={output}", "--robot.type=so101_follower", "--fps=30"]
    command = [str(python), "-m", "policy_server.export.cli", str(checkpoint), *stated]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def compare(half: Path, whole: Path, seeds: int) -> int:
    """Play all seeds with both and print the table; 1 if fp16 is worse beyond chance."""
    folders = {"fp16": half, "fp32": whole}
    check(folders)
    solved: dict[str, dict[int, float]] = {}
    for precision, folder in folders.items():
        with closing(Player(folder, ACTIONS)) as player:
            episodes = [player.play(seed) for seed in range(seeds)]
        solved[precision] = {each.seed: each.ticks * TICK_S for each in episodes if each.success}
    both = solved["fp16"].keys() & solved["fp32"].keys()
    for precision, folder in folders.items():
        size = sum(entry.bytes for entry in bundle.load(folder).manifest.files.values()) / 1e6
        median_s = statistics.median(solved[precision][seed] for seed in both)
        print(
            f"{precision}: {len(solved[precision])}/{seeds} seeds solved, {median_s:.2f} s (median over those "
            f"solved by both), {size:.1f} MB"
        )
    losses, gains = len(solved["fp32"].keys() - both), len(solved["fp16"].keys() - both)
    p_value = mcnemar(losses, gains)
    lost = f"fp16 loses {losses} seeds that fp32 solves and solves {gains} that it loses"
    return int(not reach(f"{lost}: p = {p_value:.3f} (reach 0.05)", p_value >= 0.05))


def check(folders: dict[str, Path]) -> None:
    """Exits unless they are what they are compared as, from one checkpoint."""
    manifests = {precision: bundle.load(folder).manifest for precision, folder in folders.items()}
    for precision, manifest in manifests.items():
        if manifest.precision != precision:
            raise SystemExit(f"{folders[precision]}: its precision is {manifest.precision}, expected {precision}")
    if len({manifest.provenance["weights_sha256"] for manifest in manifests.values()}) > 1:
        raise SystemExit("the two bundles were exported from different weights")


if __name__ == "__main__":
    start(Fp16Config, main)
