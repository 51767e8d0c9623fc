"""Six virtual servos on a pty that move as `motion` says, whatever they are told; ends when stdin closes.

python -m scripts.benches.vs_lerobot.servos moving 0      # prints the port

A real bus is hardware and answers at once. So that this one does too, it asks for real-time priority where it may.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time

from edge_runtime.virtual_arm.bus import VirtualBus
from edge_runtime.virtual_arm.calibration import to_ticks
from edge_runtime.virtual_arm.servos import Felt
from scripts.benches.vs_lerobot import motion

PRIORITY = 50


class Puppet:
    """Shafts that are where the clock says."""

    def __init__(self, how: motion.Motion, offset: float) -> None:
        self._how, self._offset = how, offset

    def felt(self) -> list[Felt]:
        ticks = to_ticks(motion.positions(self._how, time.monotonic(), self._offset))
        return [Felt(tick, 0.0, 0.0) for tick in ticks.tolist()]


def main() -> None:
    how, offset = sys.argv[1:]
    assert how in ("moving", "still")
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    with VirtualBus(plant=Puppet(how, float(offset)), log_size=100) as bus:  # type: ignore[arg-type]
        print(bus.path, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
