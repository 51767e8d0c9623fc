"""What an export costs and what it gains: parity, size and time of each checkpoint, and ONNX Runtime against torch.

python -m scripts.benches.export                # the small checkpoints; CHECKPOINTS=DIR for more
python -m scripts.benches.export --full         # also SmolVLA in its full size: 12 GB of memory and minutes

Needs edge-runtime[export]. Times are medians, on one thread, of both sides taken in turns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from policy_server import bundle
from policy_server.engines import open_engine
from policy_server.engines.providers import Runtime
from policy_server.export.checkpoint import load
from policy_server.export.policies import build
from scripts.rig import random_checkpoint
from scripts.rig.bench import reach, start

CHECKPOINTS = Path(os.environ.get("CHECKPOINTS", random_checkpoint.SMALL))
NAMES = (
    *("act_so101_pick_place", "act_so101_cubes", "act_random", "smolvla_tiny/checkpoint", "pi0_tiny/checkpoint"),
    *("pi05_tiny/checkpoint", "diffusion_tiny/ddpm", "diffusion_tiny/ddim", "diffusion_tiny/single"),
)


def export(source: Path, output: Path, *more: str) -> tuple[float, float]:
    """Seconds and the largest resident memory in GB of one export, in a process of its own."""
    command = [sys.executable, "-m", "policy_server.export.cli", str(source), f"--output={output}"]
    start = time.monotonic()
    process = subprocess.Popen([*command, "--robot.type=so101_follower", "--fps=30", *more], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"the export of {source.name} failed")
    return time.monotonic() - start, usage.ru_maxrss / 1e6


def tokenizer(source: Path) -> list[str]:
    """The flag for a language policy's tokenizer, beside or inside its checkpoint."""
    found = [
        folder for folder in (source.parent / "vlm", source.parent / "tokenizer", source / "lm") if folder.is_dir()
    ]
    return [f"--tokenizer={folder}" for folder in found[:1]]


def report(what: str, made: Path, seconds: float, gigabytes: float) -> None:
    manifest = json.loads((made / "manifest.json").read_text())
    parity = manifest["parity"]
    stored = max((found["max_abs_normalised"] for found in parity["references"].values()), default=0.0)
    size = sum(entry["bytes"] for entry in manifest["files"].values()) / 1e6
    reach(
        f"{what:28} {seconds:6.1f} s  {gigabytes:5.2f} GB RSS  {size:8.1f} MB  "
        f"torch {parity['max_abs_normalised']:.1e} normalised (reach 1e-4), {parity['max_abs']:.1e} units; "
        f"LeRobot {f'{stored:.1e}' if stored else 'not stored'} (reach 1e-4)",
        max(parity["max_abs_normalised"], stored) <= 1e-4,
    )


def median_ms(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The median time of each, taken in turns so that a busy machine is equally unfair to all."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds + 2):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: 1e3 * float(np.median(taken[2:])) for name, taken in times.items()}


def race(what: str, source: Path, made: Path, rounds: int, faster: float) -> None:
    """One observation through the server's engine and through torch in eager mode, on one thread."""
    torch.set_num_threads(1)
    places = tokenizer(source)
    policy = build(load(source), Path(places[0].partition("=")[2]) if places else None)
    engine = open_engine(bundle.load(made), Runtime("cpu", threads=1))
    observation = policy.observe(1, np.random.default_rng(0))
    taken = median_ms({"torch": lambda: policy.answer(observation), "ORT": lambda: engine.infer(observation)}, rounds)
    ratio = taken["torch"] / taken["ORT"]
    reach(
        f"{what:28} torch {taken['torch']:7.1f} ms  ORT {taken['ORT']:7.1f} ms  {ratio:.2f} x (reach {faster})",
        ratio >= faster,
    )


@dataclass
class ExportConfig:
    """Parity, size and time of each checkpoint."""

    full: bool = False  # SmolVLA in its full size too, and the memory of a PI0 beyond 2 GB
    rounds: int = 15


def main(options: ExportConfig) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-export-") as work:
        here = Path(work)
        for name in NAMES:
            if (source := CHECKPOINTS / name).is_dir():
                made = here / name.removesuffix("/checkpoint").replace("/", "_")
                report(made.name, made, *export(source, made, *tokenizer(source)))
        for height, width in ((480, 640), (240, 320)):
            source = here / f"act_{height}"
            random_checkpoint.write("act", source, height, width)
            made = here / f"act_{height}_bundle"
            report(f"ACT 2x{height}x{width}, random", made, *export(source, made))
        race("ACT 2x240x320, forward", here / "act_240", here / "act_240_bundle", options.rounds, 1.3)
        race(
            "SmolVLA tiny, whole chunk",
            CHECKPOINTS / "smolvla_tiny/checkpoint",
            here / "smolvla_tiny",
            options.rounds,
            1.5,
        )
        if options.full:
            random_checkpoint.write("smolvla", here / "smolvla")
            made = here / "smolvla_bundle"
            report("SmolVLA full size, random", made, *export(here / "smolvla", made, *tokenizer(here / "smolvla")))
            race("SmolVLA full, whole chunk", here / "smolvla", made, 1, 1.5)
            random_checkpoint.write("pi0", here / "pi0", 96, 128)
            weights = (here / "pi0" / "model.safetensors").stat().st_size / 1e9
            for precision in ("fp16", "fp32"):
                made = here / f"pi0_{precision}"
                seconds, gigabytes = export(here / "pi0", made, f"--precision={precision}", *tokenizer(here / "pi0"))
                report(f"PI0 {weights:.1f} GB, random, {precision}", made, seconds, gigabytes)
                reach(
                    f"PI0 {weights:.1f} GB, {precision}: memory {gigabytes / weights:.2f} x the weights (reach 2.5)",
                    gigabytes <= 2.5 * weights,
                )


if __name__ == "__main__":
    start(ExportConfig, main)
