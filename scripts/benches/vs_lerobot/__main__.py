"""Ourselves beside LeRobot 0.6.1's async_inference: same pictures, same robot, same stub latency, in turns.

    export-onnx CHECKPOINT --output=cubes640 --robot.type=so101_follower --fps=30 --image_size=640x480
    python -m scripts.benches.vs_lerobot --lerobot_python=VENV/bin/python --checkpoint=CHECKPOINT --bundle=cubes640

VENV is a Python 3.12 or later with `lerobot[async]==0.6.1`; without it there is nothing to compare with, and the exit
code is 77. CHECKPOINT is an ACT with the cameras `static` and `wrist`. `docs/vs-lerobot.md` says what is compared.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from edge_runtime.errors import ConfigError
from scripts.benches.vs_lerobot import processes, table
from scripts.benches.vs_lerobot.figures import FIGURES
from scripts.rig.bench import start

SKIPPED = 77
VERSION = "0.6.1"

QUALITIES = (97, 95, 93, 90, 80)


@dataclass
class BenchConfig:
    """Runs the scenarios `rounds` times on both sides and prints one table."""

    lerobot_python: Path | None = None  # the Python of an environment with lerobot[async]
    checkpoint: Path | None = None  # LeRobot's
    bundle: Path | None = None  # the same checkpoint, exported with --image_size=640x480
    rounds: int = 3
    seconds: float = 10.0  # measured of each run
    latency_ms: float = 200.0  # of both servers, injected
    scenarios: list[str] = field(default_factory=list)  # by default all
    nice: int = 0  # of every process of both sides, the hog too; below 0 on a machine that others use
    output: Path | None = None  # folder for logs and results, where a bench goes on; by default a temporary one
    json: Path | None = None  # the table for machines
    markdown: Path | None = None  # the table for a page
    debug: bool = False

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ConfigError(f"rounds: {self.rounds} is less than 1")
        if not 2 <= self.seconds <= 60:
            raise ConfigError(f"seconds: {self.seconds:g} is not in 2..60")


def main(config: BenchConfig) -> int:
    if config.lerobot_python is None or (version := _version(config.lerobot_python)) is None:
        print(f"skipped: --lerobot_python={config.lerobot_python} is not a Python with lerobot[async]=={VERSION}")
        return SKIPPED
    if config.checkpoint is None or config.bundle is None:
        raise ConfigError("checkpoint and bundle: both are needed")
    with tempfile.TemporaryDirectory(prefix="versus-") as temporary:
        folder = config.output or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        return _compare(config, folder.resolve(), version)


def _compare(config: BenchConfig, folder: Path, version: str) -> int:
    from scripts.benches.vs_lerobot import (  # MuJoCo and an engine: not before it is known that there is work
        recording,
        scenarios,
    )
    from scripts.benches.vs_lerobot.motion import positions
    from scripts.benches.vs_lerobot.sides import QUALITY, Edge, LeRobot, Place

    assert config.lerobot_python is not None
    assert config.checkpoint is not None
    assert config.bundle is not None
    names = config.scenarios or list(scenarios.SCENARIOS)
    if unknown := set(names) - set(scenarios.SCENARIOS):
        raise ConfigError(f"scenarios: no {sorted(unknown)[0]!r}; there are {', '.join(scenarios.SCENARIOS)}")
    robot, rest = processes.processors()
    os.sched_setaffinity(0, rest)
    os.setpriority(os.PRIO_PROCESS, 0, config.nice)
    looks, infer = recording.record(config.bundle, folder)
    fidelities = recording.fidelity(looks, infer, QUALITIES, QUALITIES)
    print("\n".join(map(str, fidelities)), flush=True)
    first, other = (infer(positions("still", 0.0, arm.offset), looks[arm.picture].views) for arm in scenarios.PAIR)
    latency_s = config.latency_ms / 1e3
    setting = scenarios.Setting(
        LeRobot(config.lerobot_python.absolute(), config.checkpoint.resolve(), latency_s),
        Edge(config.bundle.resolve(), latency_s),
        Place(folder, folder, robot, rest),
        config.seconds,
        (first, other),
    )
    loads = [os.getloadavg()[0]]
    found = scenarios.measure(setting, names, config.rounds, lambda what: print(what, file=sys.stderr, flush=True))
    loads.append(os.getloadavg()[0])
    wire = next(each for each in fidelities if each.name == f"JPEG {QUALITY} 4:4:4")
    found |= {("jpeg_p99", "ours"): [wire.p99], ("jpeg_largest", "ours"): [wire.largest]}
    lines = table.lines(FIGURES, found)
    how = (
        f"lerobot {version} against edge-runtime, {config.rounds} rounds of {config.seconds:g} s a run, median "
        f"(least–most); stub latency {config.latency_ms:g} ms; the client on processor {sorted(robot)}, all else on "
        f"{sorted(rest)}, nice {config.nice}; load {loads[0]:.1f} before, {loads[1]:.1f} after"
    )
    print(table.text(lines), how, sep="\n\n")
    if config.markdown is not None:
        config.markdown.write_text(f"{table.markdown(lines)}\n\n{how}\n")
    if config.json is not None:
        content = {"how": how, "lines": [line.as_dict() for line in lines], "jpeg": [vars(f) for f in fidelities]}
        config.json.write_text(json.dumps(content, indent=1) + "\n")
    return 0


def _version(python: Path) -> str | None:
    """Of the LeRobot that `python` has; None when it has none, or another one."""
    ask = "import importlib.metadata as m, grpc, torch; print(m.version('lerobot'))"
    try:
        said = subprocess.run([python, "-c", ask], capture_output=True, text=True, timeout=120).stdout.strip()
    except OSError:
        return None
    return said if said == VERSION else None


if __name__ == "__main__":
    start(BenchConfig, main)
