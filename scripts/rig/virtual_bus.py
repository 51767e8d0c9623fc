"""Six virtual servos on a pty in a process of their own, so that a benchmark measures its own side alone.

python -m scripts.rig.virtual_bus --wire_time --return_delay_us=0     # prints the port; ends when stdin closes
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from edge_runtime.virtual_arm.bus import VirtualBus
from scripts.rig.bench import start


@contextmanager
def virtual_bus(*options: str) -> Iterator[str]:
    """The port's path, while the servos live."""
    command = [sys.executable, "-m", "scripts.rig.virtual_bus", *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        path = process.stdout.readline().strip()
        if not path:
            raise SystemExit("the virtual bus did not start")
        yield path  # leaving closes stdin


@dataclass
class BusConfig:
    """Six virtual servos; ends when stdin closes."""

    wire_time: bool = False  # 10 us a byte
    return_delay_us: float = 0.0  # before each answer


def main(config: BusConfig) -> None:
    with VirtualBus(wire_time=config.wire_time, return_delay_s=config.return_delay_us / 1e6) as bus:
        print(bus.path, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    start(BusConfig, main)
