"""Our side of the comparison: `edge-runtime start` with cameras that show recorded pictures, and every tick kept.

python -m scripts.benches.vs_lerobot.edge_driver DIARY --robot.cameras='{static: {type: recorded, folder: FRAMES}}' …
"""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_runtime.acting.supervisor.client import watch_over
from edge_runtime.cameras import CAMERAS, CameraFrame
from edge_runtime.config import CameraConfig, StartConfig
from edge_runtime.program import flags
from scripts.benches.vs_lerobot import diary
from scripts.benches.vs_lerobot.frames import FPS, Reel

if TYPE_CHECKING:
    from typing_extensions import Self

COLLECT_EVERY = 120  # ticks; the loop remembers 300


@CameraConfig.register_subclass("recorded")
@dataclass
class RecordedCameraConfig(CameraConfig):
    """A camera of the comparison: a folder of pictures, and which one it shows all the time (-1: in turn)."""

    folder: Path = Path()
    picture: int = -1


class RecordedCamera:
    """Shows a view's pictures by the clock, without a thread."""

    failures = 0
    delivered_fps = float(FPS)

    def __init__(self, name: str, config: RecordedCameraConfig) -> None:
        self._reel = Reel(config.folder, name, config.picture)

    def open(self) -> None: ...
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def latest(self) -> CameraFrame:
        now_s = time.monotonic()
        return CameraFrame(self._reel.at(now_s), int(now_s * 1e9), self._reel.number(now_s), int(now_s * 1e9))

    @property
    def frames(self) -> int:
        return self._reel.number(time.monotonic())

    @property
    def shape(self) -> tuple[int, int]:
        return self._reel.shape[:2]


CAMERAS["recorded"] = "scripts.benches.vs_lerobot.edge_driver:RecordedCamera"


class Notes:
    """An listener that takes over the loop's own trace before it is overwritten."""

    def __init__(self) -> None:
        self.turns: list[diary.Turn] = []
        self._seen_ns = 0
        self._levels: dict[int, int] = {}
        self.began: tuple[diary.Usage, float] | None = None

    def see(self, record: Any, stats: Any) -> None:
        self._levels[record.time_ns] = record.level
        if self.began is None and record.level > 0:
            self.began = diary.Usage.now(), time.monotonic()
            print("executing", flush=True)
        if record.sequence % COLLECT_EVERY == 0:
            self.collect(stats.loop)

    def collect(self, loop: Any) -> None:
        for tick in loop.recent_ticks():
            if tick["time_ns"] > self._seen_ns:
                self._seen_ns = tick["time_ns"]
                self.turns.append(
                    diary.Turn(
                        woke_ns=tick["time_ns"],
                        sent_ns=tick["time_ns"] + tick["read_ns"] + tick["write_ns"],
                        timestep=tick["timestep"] if tick["outcome"] == "picked" else -1,
                        level=self._levels.get(tick["time_ns"], -1),
                        goal=tick["goal"],
                    )
                )


def main(argv: list[str]) -> int:
    out, *rest = argv
    config = flags.parse(StartConfig, rest, prog="edge_driver")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    notes = Notes()

    def tell(stats: Any) -> None:
        notes.collect(stats.loop)
        usage, began_s = notes.began or (diary.Usage.now(), time.monotonic() - 1)
        report = stats.report()
        diary.write(
            Path(out),
            notes.turns,
            usage,
            began_s,
            time.monotonic(),
            crashed=report["error"] or "; ".join(fault["error"] for fault in report["faults"]),
            observations=report["traffic"]["observations"],
            chunks=report["traffic"]["chunks"],
            report=report,
        )

    with watch_over(config) as supervisor:
        from edge_runtime.runtime import Runtime  # after the supervisor's fork, as in edge_runtime.cli

        Runtime(config, supervisor, listeners=[notes], tell=tell).run()
    return 0


if __name__ == "__main__":
    sys.modules["scripts.benches.vs_lerobot.edge_driver"] = sys.modules["__main__"]  # CAMERAS imports it by name
    sys.exit(flags.run_main(main, sys.argv[1:], "edge_driver"))
