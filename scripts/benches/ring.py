"""What a merge costs beside LeRobot's way, and whether a racing reader ever sees a torn or repeated row.

python -m scripts.benches.ring            # with torch rows too, where torch is installed
python -m scripts.benches.ring --quick

LeRobot's way is that of its RobotClient (async_inference/robot_client.py, 0.6): rows through a queue.Queue, one
aggregate call a row. All sides are timed in turns, on the same chunks, in one run.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Queue
from typing import Any, NamedTuple

import numpy as np

from edge_runtime._realtime import ActionRing
from scripts.rig import race as raced
from scripts.rig.bench import reach, start
from scripts.rig.race import race

ROWS, JOINTS = 50, 6


class TimedAction(NamedTuple):
    timestep: int
    timestamp: float
    action: Any


class QueueOfRows:
    """LeRobot's action queue; `action` is whatever the rows are."""

    def __init__(self) -> None:
        self.queue: Queue[TimedAction] = Queue()
        self.lock = threading.Lock()
        self.latest = -1

    def merge(self, incoming: list[TimedAction]) -> None:
        future: Queue[TimedAction] = Queue()
        with self.lock:
            waiting = {each.timestep: each.action for each in self.queue.queue}
        for new in incoming:
            if new.timestep <= self.latest:
                continue
            if new.timestep not in waiting:
                future.put(new)
                continue
            blended = 0.3 * waiting[new.timestep] + 0.7 * new.action
            future.put(TimedAction(new.timestep, new.timestamp, blended))
        with self.lock:
            self.queue = future

    def execute(self, rows: int) -> None:
        for _ in range(rows):
            self.latest = self.queue.get_nowait().timestep


def time_of(call: Callable[..., object], *arguments: Any) -> float:
    """Microseconds of one call, the call's own cost included."""
    start = time.perf_counter_ns()
    call(*arguments)
    return (time.perf_counter_ns() - start) / 1e3


def rows_of(chunk: np.ndarray[Any, Any]) -> dict[str, Any]:
    """The chunk as LeRobot may hold it."""
    try:
        import torch
    except ImportError:
        print("torch is not installed: no torch rows")
        return {"numpy rows": chunk}
    return {"numpy rows": chunk, "torch rows": torch.from_numpy(chunk)}


def merges(repeats: int) -> None:
    """Each merge finds half of its rows in the plan: 25 are executed between one and the next."""
    chunk = np.random.default_rng(0).normal(0, 40, (ROWS, JOINTS)).astype(np.float32)
    ways = rows_of(chunk)
    ring, out = ActionRing(2 * ROWS, JOINTS), np.empty(JOINTS, np.float32)
    queues = {name: QueueOfRows() for name in ways}
    taken: dict[str, list[float]] = {name: [] for name in ("ring", *ways)}
    for turn in range(repeats):
        first = turn * ROWS // 2
        taken["ring"].append(time_of(ring.merge, first, chunk, 0))
        for _ in range(ROWS // 2):
            ring.pick(out)
        for name, queue in queues.items() if turn % 10 == 0 else ():  # these are slow
            first = turn // 10 * ROWS // 2
            incoming = [TimedAction(first + i, 0.0, row) for i, row in enumerate(ways[name])]
            taken[name].append(time_of(queue.merge, incoming))
            queue.execute(ROWS // 2)
    medians = {name: statistics.median(times) for name, times in taken.items()}
    for name, times in taken.items():
        p99, ratio = sorted(times)[len(times) * 99 // 100], medians[name] / medians["ring"]
        print(f"merge of {ROWS}x{JOINTS}, {name:10} {medians[name]:7.2f} us, p99 {p99:7.2f} us {ratio:5.0f} x")
    ratio = medians["numpy rows"] / medians["ring"]
    reach(
        f"merge of {ROWS}x{JOINTS}, half of it in the plan: {medians['ring']:.2f} us (reach 3), {ratio:.0f} x faster "
        "than numpy rows through queue.Queue (reach 50)",
        medians["ring"] <= 3 and ratio >= 50,
    )


def stress(rows: int) -> bool:
    """Whether no row came torn or out of order to a reader without the GIL that executes as fast as it can.

    Chunks with random starts are merged meanwhile.
    """
    ring, starts = raced.ActionRing(4 * ROWS, JOINTS), np.random.default_rng(1)
    result: list[tuple[int, int, int]] = []
    reader = threading.Thread(target=lambda: result.append(race(ring, rows)), daemon=True)
    began = time.monotonic()
    reader.start()
    while reader.is_alive():
        first = ring.cursor + int(starts.integers(-60, 140))
        values = ((first + np.arange(ROWS)) % 4096).astype(np.float32)
        ring.merge(first, np.repeat(values[:, None], JOINTS, axis=1), 0)
    ((picks, torn, back),) = result
    return reach(
        f"race: {rows:.0e} rows executed in {picks:.1e} picks against {ring.merges} merges, {ring.stale_chunks} stale, "
        f"{ring.jumps} jumps, {time.monotonic() - began:.1f} s: {torn} torn, {back} out of order (reach 0)",
        torn == back == 0,
    )


@dataclass
class RingConfig:
    """A merge beside LeRobot's, and a reader that races with merges."""

    quick: bool = False  # a tenth of the repeats


def main(config: RingConfig) -> int:
    scale = 1 if config.quick else 10
    merges(2_000 * scale)
    return 0 if stress(1_000_000 * scale) else 1


if __name__ == "__main__":
    start(RingConfig, main)
