"""Six virtual servos on a pty in a process of their own, so that a benchmark measures its own side alone.

python -m scripts.rig.virtual_bus --wire_time --return_delay_us=0     # prints the port; ends when stdin closes
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from edge_runtime.virtual_arm.bus import VirtualBus


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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--wire_time", action="store_true", help="10 us a byte")
    parser.add_argument("--return_delay_us", type=float, default=0, help="before each answer")
    args = parser.parse_args()
    with VirtualBus(wire_time=args.wire_time, return_delay_s=args.return_delay_us / 1e6) as bus:
        print(bus.path, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
