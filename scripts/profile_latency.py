"""Where every millisecond of a round trip goes, and what to change first; the same as `edge-runtime profile`.

python -m scripts.profile_latency --bundle=policy_server/bundles/act_so101_cubes --html=profile.html
python -m scripts.profile_latency --server_address=192.168.1.20:8080 --jpeg_quality=0 --chunks=50
python -m scripts.profile_latency --robot.type=so101_follower --robot.port=/dev/ttyACM0 --robot.id=my_arm
python -m scripts.profile_latency --bundle=act_so101_cubes --plot=stages.png    # and the stages drawn as bars
python -m scripts.profile_latency --quick                                       # 20 round trips of that policy
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edge_runtime.program import flags
from edge_runtime.timing import SERVER_STAGES
from edge_runtime.tools.profiler import cli
from scripts.rig.picture import BLUE, GREEN, GREY, VERMILION, legend, picture

QUICK = ("--bundle=act_so101_cubes", "--chunk_size_threshold=1", "--chunks=20")
PLACES = {"robot": BLUE, "network": VERMILION, "server": GREEN, "other": GREY}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", type=Path)
    ours, theirs = parser.parse_known_args(argv)
    theirs = [*QUICK, *theirs] if ours.quick else theirs
    with tempfile.TemporaryDirectory(prefix="profile-") as folder:
        file = ours.json or (Path(folder) / "profile.json" if ours.plot else None)
        code = cli.main([*theirs, f"--json={file}"] if file else theirs)
        if ours.plot and file:
            plot(ours.plot, json.loads(file.read_text()))
    return code


def plot(path: Path, profile: Mapping[str, Any]) -> None:
    """The mean of each stage, one after the other until the chunk is merged, with its median and 95th percentile."""
    stages = {name: ms for name, times in profile["warm_s"].items() if round((ms := in_ms(times))["mean"], 2)}
    whole, at_ms = stages.pop("round_trip"), 0.0
    with picture(path, 110 + 36 * len(stages)) as ((axis,),):
        for name, ms in stages.items():
            axis.barh(name, ms["mean"], left=at_ms, color=PLACES[place(name)])
            at_ms += ms["mean"]
            axis.annotate(
                f"{ms['mean']:.2f} ms (p50 {ms['p50']:.2f}, p95 {ms['p95']:.2f})",
                (at_ms, name),
                (5, 0),
                textcoords="offset points",
                va="center",
                fontsize="small",
            )
        axis.invert_yaxis()
        axis.set_xlim(0, 1.4 * whole["mean"])
        axis.set_xlabel("time since the tick that read the state, mean, ms")
        axis.set_title(
            f"{profile['setting']['policy']}, {whole['n']:.0f} round trips: mean {whole['mean']:.2f} ms, "
            f"p50 {whole['p50']:.2f}, p95 {whole['p95']:.2f}, p99 {whole['p99']:.2f}",
            fontsize="medium",
        )
        for name, colour in PLACES.items():
            axis.barh(0, 0, color=colour, label=name)
        legend(axis, len(PLACES))


def in_ms(times: Mapping[str, float]) -> dict[str, float]:
    return {name: value if name == "n" else 1e3 * value for name, value in times.items()}


def place(stage: str) -> str:
    if stage in SERVER_STAGES:
        return "server"
    return stage if stage in PLACES else "robot"


if __name__ == "__main__":
    sys.exit(flags.run_main(main, sys.argv[1:], "profile_latency.py"))
