"""How fast a servo cycle is, and what CPU time it costs beside feetech-servo-sdk's.

python -m scripts.benches.bus
python -m scripts.benches.bus --quick

A cycle is a sync read of six positions and a sync write of six goals, on virtual servos with wire time (10 us a byte).
The rate is taken without return delay; the CPU time of both with 500 us before each answer, in turns, in one run.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import scservo_sdk as sdk

from edge_runtime._realtime import ActionRing, ActuatorLoop, FeetechPort
from scripts.rig.bench import reach, start
from scripts.rig.virtual_bus import virtual_bus

IDS = range(1, 7)
GOAL, PRESENT = 42, 56
ROUNDS = 5


def compiled(path: str) -> tuple[Callable[[], None], ActuatorLoop, FeetechPort]:
    """A tick of the loop; its two system calls for the bus and the wait between them."""
    fd = os.open(path, os.O_RDWR | os.O_NOCTTY)
    port = FeetechPort(fd, IDS, [0] * 6, [0] * 6, [4096] * 6, [0] * 6, timeout_ns=20_000_000)
    loop = ActuatorLoop(ActionRing(10, 6), port, fps=100)
    loop.prime([0.0] * 6)
    return lambda: loop.tick(time.monotonic_ns()), loop, port


def vendors(path: str) -> Callable[[], None]:
    """The same by feetech-servo-sdk, as LeRobot calls it."""
    port, packet = sdk.PortHandler(path), sdk.PacketHandler(0)
    if not port.openPort():
        raise SystemExit(f"feetech-servo-sdk cannot open {path}")
    port.setBaudRate(1_000_000)
    reader, writer = sdk.GroupSyncRead(port, packet, PRESENT, 2), sdk.GroupSyncWrite(port, packet, GOAL, 2)
    for servo in IDS:
        reader.addParam(servo)

    def cycle() -> None:
        if reader.txRxPacket() == sdk.COMM_SUCCESS:
            for servo in IDS:
                reader.getData(servo, PRESENT, 2)
        writer.clearParam()
        for servo in IDS:
            writer.addParam(servo, [0x00, 0x08])
        writer.txPacket()

    return cycle


def measure(cycle: Callable[[], None], cycles: int) -> tuple[float, float]:
    """Cycles a second, and microseconds of this thread's CPU time a cycle."""
    wall, cpu = time.monotonic_ns(), time.thread_time_ns()
    for _ in range(cycles):
        cycle()
    return cycles * 1e9 / (time.monotonic_ns() - wall), (time.thread_time_ns() - cpu) / cycles / 1e3


@dataclass
class BusConfig:
    """Servo cycles a second, and their CPU time beside feetech-servo-sdk's."""

    quick: bool = False  # a fifth of the cycles


def main(config: BusConfig) -> None:
    cycles = 100 if config.quick else 500
    with virtual_bus("--wire_time") as path:
        tick, loop, port = compiled(path)
        rates = [measure(tick, cycles)[0] for _ in range(ROUNDS)]
        hz = statistics.median(rates)
        spread = f"median of {ROUNDS}, {min(rates):.0f}..{max(rates):.0f}"
        missing = f"{sum(port.misses)} answers missing in {loop.counters()['ticks']} cycles"
        reach(f"servo cycles without return delay: {hz:.0f} Hz ({spread}; reach 350); {missing}", hz >= 350)
    with virtual_bus("--wire_time", "--return_delay_us=500") as path:
        tick, loop, port = compiled(path)
        sdk_cycle = vendors(path)
        ours, theirs = zip(*((measure(tick, cycles), measure(sdk_cycle, cycles)) for _ in range(ROUNDS)), strict=True)
    for name, found in (("compiled loop", ours), ("feetech-servo-sdk", theirs)):
        hz, cpu = (statistics.median(column) for column in zip(*found, strict=True))
        print(f"500 us return delay: {hz:6.0f} Hz, {cpu:7.1f} us of CPU a cycle  {name}")
    ratio = statistics.median(each[1] for each in theirs) / statistics.median(each[1] for each in ours)
    reach(f"CPU time a cycle: 1/{ratio:.0f} of feetech-servo-sdk's (reach 1/10)", ratio >= 10)


if __name__ == "__main__":
    start(BusConfig, main)
