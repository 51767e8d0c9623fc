"""How late the compiled loop wakes up beside a Python loop, while another thread of the process hogs the GIL.

python scripts/bench_loop.py            # 20 s a run, three runs of the loop
python scripts/bench_loop.py --quick --plot=lateness.png

Both keep 100 Hz with absolute deadlines; the compiled one also reads and writes six virtual servos on a pty. The best
of three is quoted, since what else the machine does is not the loop's.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from edge_runtime._realtime import ActionRing, ActuatorLoop, FeetechPort
from edge_runtime.timing import BUCKETS, Histogram, bucket_floor
from picture import BLUE, VERMILION, legend, picture
from virtual_bus import virtual_bus

HZ = 100
SERVOS = 6


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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="2 s a run")
    parser.add_argument("--realtime", choices=("enforce", "try", "off"), default="try")
    parser.add_argument("--plot", type=Path, help="PNG of both histograms, ours the best of three")
    args = parser.parse_args()
    seconds = 2.0 if args.quick else 20.0
    with virtual_bus() as path, hog():
        fd = os.open(path, os.O_RDWR | os.O_NOCTTY)
        runs = [compiled(fd, seconds, args.realtime) for _ in range(3)]
        os.close(fd)
        slow = python(seconds)
    for found, outcome in runs:
        show(outcome, found)
    show("Python, time.sleep", slow)
    best, outcome = min(runs, key=lambda run: run[0].percentile(0.99))
    ratio = slow.percentile(0.5) / best.percentile(0.5)
    print(
        f"best of three at {HZ} Hz: p99 {best.percentile(0.99) * 1e3:.3f} ms; p50 {ratio:.0f} x below the Python loop's"
    )
    if args.plot:
        plot(args.plot, {f"ActuatorLoop, {outcome}": best, "Python, time.sleep": slow})


if __name__ == "__main__":
    main()
