"""How an arm of Feetech servos comes to rest: park it, let go of it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from edge_runtime.motors.bus import Bus

RAMP_S = 0.5
PARK_SPEED = 60.0  # joint units/s at most, whatever max_speed allows

_RAMP_STEPS = 10
_PARK_PERIOD_S = 0.02
_SETTLE_S = 0.5  # for the last goal; an arm that hangs low is let go then too
_ARRIVED = 2.0  # joint units

logger = logging.getLogger(__name__)


def limp(bus: Bus, torque_limits: Mapping[int, int], hurry: threading.Event) -> None:
    """Take the torque limits (by id, as they are in use) to 0 over RAMP_S, or at once on `hurry`; then torque off.

    BusError names the servos that did not confirm; all others are off. The limits are put back where torque is off:
    other programs do not write them, and would find an arm without force.
    """
    for left in reversed(range(_RAMP_STEPS)):
        if hurry.wait(RAMP_S / _RAMP_STEPS):
            break
        bus.sync_write("Torque_Limit", {servo: full * left // _RAMP_STEPS for servo, full in torque_limits.items()})
    bus.establish("Torque_Enable", dict.fromkeys(torque_limits, 0), tries=5)
    bus.establish("Torque_Limit", torque_limits)


@dataclass(frozen=True)
class Axis:
    """A joint on its way to `rest`, both conversions between its units and ticks included."""

    servo: int
    rest: float
    to_units: Callable[[int], float]
    to_ticks: Callable[[float], int]


def park(
    bus: Bus,
    axes: list[Axis],
    max_speed: float,
    timeout_s: float,
    hurry: threading.Event,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Lead the goals from where they are to rest, no faster than `max_speed` (units/s; 0 = no limit of the user's).

    Whether the arm arrived: it has not after `timeout_s` or on `hurry`. Servos that do not answer are left alone.
    """
    servos = [axis.servo for axis in axes]
    ticks = bus.sync_read("Present_Position", servos) | bus.sync_read("Goal_Position", servos)
    axes = [axis for axis in axes if axis.servo in ticks]
    start = {axis.servo: axis.to_units(ticks[axis.servo]) for axis in axes}
    speed = min(max_speed or PARK_SPEED, PARK_SPEED)
    travel_s = max((abs(axis.rest - start[axis.servo]) / speed for axis in axes), default=0.0)
    began = clock()
    while not hurry.wait(_PARK_PERIOD_S):
        elapsed = clock() - began
        if elapsed > timeout_s:
            logger.warning("not at rest after %.1f s: the arm is let go where it is", timeout_s)
            return False
        part = min(elapsed / travel_s, 1.0) if travel_s else 1.0
        goals = {axis.servo: start[axis.servo] + part * (axis.rest - start[axis.servo]) for axis in axes}
        bus.sync_write("Goal_Position", {axis.servo: axis.to_ticks(goals[axis.servo]) for axis in axes})
        if part == 1.0 and (_is_at_rest(bus, axes) or elapsed > travel_s + _SETTLE_S):
            return True
    return False


def _is_at_rest(bus: Bus, axes: list[Axis]) -> bool:
    ticks = bus.sync_read("Present_Position", [axis.servo for axis in axes])
    return all(abs(axis.to_units(ticks[axis.servo]) - axis.rest) < _ARRIVED for axis in axes if axis.servo in ticks)
