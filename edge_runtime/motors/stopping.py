"""How an arm of Feetech servos comes to rest, as a plan that whoever holds the bus can carry out."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from edge_runtime.errors import BusError
from edge_runtime.motors.bus import Bus

if TYPE_CHECKING:
    from edge_runtime.config import StopPolicy

RAMP_S = 0.5
PARK_SPEED = 60.0  # joint units/s at most, whatever max_speed allows

_LET_GO_ASKS = 30  # at most, of servos that do not answer: each waits for what may be late, and for the answer
_RAMP_STEPS = 10
_PARK_PERIOD_S = 0.02
_SETTLE_S = 0.5  # for the last goal; an arm that hangs low is let go then too
_ARRIVED = 2.0  # joint units

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Axis:
    """A joint on its way to `rest` (ticks); speeds are in joint units, of `ticks_per_unit` each."""

    servo: int
    rest: int
    ticks_per_unit: float


@dataclass(frozen=True)
class StopPlan:
    """A stop policy and all that it needs to know: `torque_limits` (by id, as they are in use) and the way to rest.

    The line's part: whether it returns what is sent (`echo`), and how long an answer may take (`timeout_s`).
    """

    policy: StopPolicy
    torque_limits: Mapping[int, int]
    axes: Sequence[Axis] = ()
    max_speed: float = 0.0  # joint units/s; 0 = no limit of the user's
    park_timeout_s: float = 5.0
    echo: bool = False
    timeout_s: float = 0.05

    @property
    def within_s(self) -> float:
        """When it has ended, whatever the bus is like."""
        letting_go_s = RAMP_S + _LET_GO_ASKS * self.timeout_s
        return letting_go_s + (self.park_timeout_s if self.policy == "park" else 0.0)

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> StopPlan:
        fields = json.loads(data)
        fields["torque_limits"] = {int(servo): limit for servo, limit in fields["torque_limits"].items()}
        fields["axes"] = [Axis(**axis) for axis in fields["axes"]]
        return cls(**fields)


def carry_out(bus: Bus, plan: StopPlan, hurry: threading.Event, clock: Callable[[], float] = time.monotonic) -> None:
    """End as `plan` says; `hurry`, once set, means limp at once. BusError when servos could not be reached.

    An arm that cannot be led to rest is let go where it is.
    """
    if plan.policy == "hold" and not hurry.is_set():
        return
    if plan.policy == "park" and not hurry.is_set():
        try:
            park(bus, plan.axes, plan.max_speed, plan.park_timeout_s, hurry, clock)
        except BusError as error:
            logger.warning("cannot park: %s", error)
    limp(bus, plan.torque_limits, hurry)


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


def park(
    bus: Bus,
    axes: Sequence[Axis],
    max_speed: float,
    timeout_s: float,
    hurry: threading.Event,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Lead the goals from where they are to rest, no faster than `max_speed` (units/s; 0 = no limit of the user's).

    Whether the arm arrived: it has not after `timeout_s` or on `hurry`. Servos that do not answer are left alone.
    """
    servos = [axis.servo for axis in axes]
    start = bus.sync_read("Present_Position", servos) | bus.sync_read("Goal_Position", servos)
    axes = [axis for axis in axes if axis.servo in start]
    speed = min(max_speed or PARK_SPEED, PARK_SPEED)
    ways = (abs(axis.rest - start[axis.servo]) / axis.ticks_per_unit for axis in axes)
    travel_s = max(ways, default=0.0) / speed
    began = clock()
    while not hurry.wait(_PARK_PERIOD_S):
        elapsed = clock() - began
        if elapsed > timeout_s:
            logger.warning("not at rest after %.1f s: the arm is let go where it is", timeout_s)
            return False
        part = min(elapsed / travel_s, 1.0) if travel_s else 1.0
        goals = {axis.servo: start[axis.servo] + part * (axis.rest - start[axis.servo]) for axis in axes}
        bus.sync_write("Goal_Position", {servo: round(goal) for servo, goal in goals.items()})
        if part == 1.0 and (_is_at_rest(bus, axes) or elapsed > travel_s + _SETTLE_S):
            return True
    return False


def _is_at_rest(bus: Bus, axes: Sequence[Axis]) -> bool:
    ticks = bus.sync_read("Present_Position", [axis.servo for axis in axes])
    return all(
        abs(ticks[axis.servo] - axis.rest) < _ARRIVED * axis.ticks_per_unit for axis in axes if axis.servo in ticks
    )
