"""How late the compiled loop wakes up beside a Python loop, while another thread of the process hogs the GIL.

python -m scripts.benches.loop            # 20 s a run, three runs of each, in turns
python -m scripts.benches.loop --quick --plot=lateness.png

Both keep 100 Hz with absolute deadlines; the compiled one also reads and writes six virtual servos on a pty. Medians of
the three are quoted.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from edge_runtime._realtime import ActionRing, ActuatorLoop, FeetechPort
from edge_runtime.timing import BUCKETS, Histogram, bucket_floor
from scripts.rig.bench import reach, start
from scripts.rig.picture import BLUE, VERMILION, legend, picture
from scripts.rig.virtual_bus import virtual_bus

HZ = 100
SERVOS = 6
TURNS = 3


@contextmanager
def hog() -> Iterator[None]:
    """A thread that never lets go of the GIL by itself."""
    done = False

    def spin() -> None:
        while not done:
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        yield
    finally:
        done = True
        thread.join()


def compiled(fd: int, seconds: float, realtime: str) -> tuple[Histogram, str]:
    """The lateness of ActuatorLoop, and what real-time class it ran in."""
    port = FeetechPort(
        fd, range(1, SERVOS + 1), [0] * SERVOS, [0] * SERVOS, [4095] * SERVOS, [0] * SERVOS, timeout_ns=3_000_000
    )
    loop = ActuatorLoop(ActionRing(100, SERVOS), port, fps=HZ, realtime=realtime, max_missed_replies=1000)  # type: ignore[arg-type]
    loop.prime([0.0] * SERVOS)
    thread = threading.Thread(target=loop.run)
    thread.start()
    loop.wait(round(seconds * HZ), 2 * seconds)
    loop.stop()
    thread.join()
    counters, bus = loop.counters(), loop.bus_time().summary()
    print(
        f"    {counters['ticks']} ticks, {counters['late']} late, {counters['missed']} missed, "
        f"{counters['read_errors']} incomplete reads; bus p50 {bus.p50 * 1e3:.2f} ms, p99 {bus.p99 * 1e3:.2f} ms"
    )
    return loop.lateness(), loop.realtime_outcome


def python(seconds: float) -> Histogram:
    """The lateness of a Python loop that does nothing but sleep until its deadlines."""
    lateness, deadline = Histogram(), time.monotonic()
    for _ in range(round(seconds * HZ)):
        deadline += 1 / HZ
        time.sleep(max(deadline - time.monotonic(), 0))
        lateness.record(max(time.monotonic() - deadline, 0))
    return lateness


def show(who: str, lateness: Histogram) -> None:
    found = lateness.summary()
    print(
        f"{who:34} lateness p50 {found.p50 * 1e6:9.1f} us, p99 {found.p99 * 1e6:9.1f} us, max {found.max * 1e6:9.1f} us"
    )


def judge(ours: Sequence[Histogram], theirs: Sequence[Histogram]) -> bool:
    """Medians beside medians, and the range of ours; the reach for p99 is for the best of the runs."""
    (p99_ms, p50_ms), (_, slow_ms) = (
        [sorted(1e3 * run.percentile(share) for run in runs) for share in (0.99, 0.5)] for runs in (ours, theirs)
    )
    ratio = statistics.median(slow_ms) / statistics.median(p50_ms)
    return reach(
        f"median of {len(ours)} at {HZ} Hz: p99 {statistics.median(p99_ms):.3f} ms ({p99_ms[0]:.3f}–{p99_ms[-1]:.3f}; "
        f"reach 1 at best); p50 {ratio:.0f} x below the Python loop's (reach 20)",
        p99_ms[0] < 1 and ratio >= 20,
    )


def middle(runs: Sequence[Histogram]) -> Histogram:
    """The one with the median of the 99th percentiles."""
    return sorted(runs, key=lambda run: run.percentile(0.99))[len(runs) // 2]


def plot(path: Path, found: Mapping[str, Histogram]) -> None:
    """The share of wake-ups by how late they were, ten bars to a decade, with the 99th percentile of each."""
    edges_us = np.logspace(0, 6, 61)
    at_us = np.clip([bucket_floor(index) / 1e3 for index in range(BUCKETS)], edges_us[0], edges_us[-1])
    with picture(path, 480) as ((axis,),):
        for (who, lateness), colour in zip(found.items(), (BLUE, VERMILION), strict=True):
            share = 100 * np.array(lateness.counts) / lateness.n
            p99_us = lateness.percentile(0.99) * 1e6
            axis.hist(at_us, edges_us, weights=share, color=colour, alpha=0.7, label=who)
            axis.axvline(p99_us, color=colour, linestyle="--", label=f"its 99th percentile: {_readable(p99_us)}")
        axis.set_xscale("log")
        axis.set_xlim(*edges_us[[0, -1]])
        axis.set_xlabel(f"lateness of a wake-up at {HZ} Hz beside a thread that hogs the GIL, µs")
        axis.set_ylabel("share of the wake-ups, %")
        legend(axis, 2)


def _readable(us: float) -> str:
    return f"{us:.0f} µs" if us < 1000 else f"{us / 1e3:.1f} ms"


@dataclass
class LoopConfig:
    """The lateness of the compiled loop beside that of a Python loop."""

    quick: bool = False  # 2 s a run, not 20
    realtime: Literal["enforce", "try", "off"] = "try"
    plot: Path | None = None  # PNG of both histograms, each of the run with the middle p99


def main(config: LoopConfig) -> None:
    seconds = 2.0 if config.quick else 20.0
    with virtual_bus() as path, hog():
        fd = os.open(path, os.O_RDWR | os.O_NOCTTY)
        ours: list[Histogram] = []
        theirs: list[Histogram] = []
        for _ in range(TURNS):
            found, outcome = compiled(fd, seconds, config.realtime)
            show(outcome, found)
            ours.append(found)
            theirs.append(python(seconds))
            show("Python, time.sleep", theirs[-1])
        os.close(fd)
    judge(ours, theirs)
    if config.plot:
        plot(config.plot, {f"ActuatorLoop, {outcome}": middle(ours), "Python, time.sleep": middle(theirs)})


if __name__ == "__main__":
    start(LoopConfig, main)
