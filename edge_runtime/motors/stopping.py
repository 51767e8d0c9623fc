"""How an arm of Feetech servos comes to rest, as a plan that the runtime or its supervisor can carry out."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from edge_runtime.errors import BusError
from edge_runtime.motors.bus import Bus
from edge_runtime.motors.clock import Clock

if TYPE_CHECKING:
    from edge_runtime.config import StopPolicy

RAMP_S = 0.5
LIMP_S = 2.0  # in which torque is off, or it is said that this could not be confirmed
PARK_SPEED = 60.0  # joint units/s at most, whatever max_speed allows

_RAMP_STEPS = 10
_READINGS = 3  # of a position, for two that agree
_WRITES = 2  # of a goal, until it is read back
_APART = 60  # ticks between two of these: 5 degrees, a tick of 16 ms at full speed
_AGAIN_S = 0.05  # between two attempts to take torque off
_LAST_ROUND_S = 0.2  # that such an attempt takes on a silent line
_PARK_PERIOD_S = 0.02
_PARK_FAILURES = 5  # in a row, then the line is not fit for it
_SETTLE_S = 0.5  # for the last goal; an arm that hangs low is let go then too
_ARRIVED = 2.0  # joint units

T = TypeVar("T")

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
        return LIMP_S + (self.park_timeout_s if self.policy == "park" else 0.0)

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> StopPlan:
        fields = json.loads(data)
        fields["torque_limits"] = {int(servo): limit for servo, limit in fields["torque_limits"].items()}
        fields["axes"] = [Axis(**axis) for axis in fields["axes"]]
        return cls(**fields)


def carry_out(bus: Bus, plan: StopPlan, hurry: threading.Event, clock: Clock) -> None:
    """End as `plan` says; `hurry`, once set, means limp at once. BusError when torque could not be confirmed off.

    An arm that cannot be led to rest is let go where it is, and so is one that has not all its force: another process
    has begun to let go of it.
    """
    if plan.policy == "hold" and not hurry.is_set():
        return
    if plan.policy == "park" and not hurry.is_set():
        try:
            if _is_weak(bus, plan.torque_limits):
                logger.warning("cannot park: the arm has not all its force any more")
            else:
                park(bus, plan.axes, plan.max_speed, plan.park_timeout_s, hurry, clock)
        except BusError as error:
            logger.warning("cannot park: %s", error)
    limp(bus, plan.torque_limits, hurry, clock)


def limp(bus: Bus, torque_limits: Mapping[int, int], hurry: threading.Event, clock: Clock) -> None:
    """Lower the arm: its force goes to 0 over RAMP_S, or at once on `hurry`, then torque off, within LIMP_S in all.

    Force only falls: it begins at what a servo has now, at most at its `torque_limits` (by id, as they are in use), and
    the goal is where the arm is. A servo of which either is not certain is let go of at once. No error of the line
    ends it but a port that is gone: torque off is repeated until it is confirmed. The limits are put back servo by
    servo where torque is off: other programs do not write them, and would find an arm without force.
    BusError names the servos that did not confirm.
    """
    until = clock.now() + LIMP_S - _LAST_ROUND_S
    ramp = _Passing(bus)
    if not hurry.is_set() and not ramp.attempt(False, _is_off, bus, torque_limits):
        nothing: dict[int, int] = {}
        force = ramp.attempt(nothing, _settle, bus, torque_limits) or ramp.attempt(nothing, _settle, bus, torque_limits)
        for left in reversed(range(_RAMP_STEPS)):
            if clock.wait(RAMP_S / _RAMP_STEPS, hurry):
                break
            step = {servo: force.get(servo, 0) * left // _RAMP_STEPS for servo in torque_limits}
            ramp.attempt(None, bus.sync_write, "Torque_Limit", step)
    energised, weak = set(torque_limits), set(torque_limits)
    while True:
        ramp.attempt(None, _let_go, bus, torque_limits, energised, weak)
        if not weak or clock.now() >= until:
            break
        clock.wait(_AGAIN_S, _NEVER)
    if ramp.failures:
        logger.warning("while the arm was let go, the line failed %d times, at last: %s", ramp.failures, ramp.last)
    if energised:
        who = ", ".join(map(bus.label, sorted(energised)))
        raise BusError(
            f"{bus.port}: torque may still be on: {who} did not confirm that it is off; cut the servos' supply",
            port=bus.port,
            motor=min(energised),
        )
    if weak:
        who = ", ".join(map(bus.label, sorted(weak)))
        logger.warning("Torque_Limit could not be put back: %s; switch the servos' supply off and on", who)


def park(
    bus: Bus,
    axes: Sequence[Axis],
    max_speed: float,
    timeout_s: float,
    hurry: threading.Event,
    clock: Clock,
) -> bool:
    """Lead the goals from where they are to rest, no faster than `max_speed` (units/s; 0 = no limit of the user's).

    Whether the arm arrived: it has not after `timeout_s` or on `hurry`. Servos that do not answer are left alone.
    BusError when the line fails several times in a row.
    """
    servos = [axis.servo for axis in axes]
    start = bus.agreed("Present_Position", servos, _APART, _READINGS) | bus.agreed(
        "Goal_Position", servos, 0, _READINGS
    )
    axes = [axis for axis in axes if axis.servo in start]
    speed = min(max_speed or PARK_SPEED, PARK_SPEED)
    ways = (abs(axis.rest - start[axis.servo]) / axis.ticks_per_unit for axis in axes)
    travel_s = max(ways, default=0.0) / speed
    travelled_s = 0.0  # not by the clock: what waits for a lost answer does not catch up at once
    line = _Passing(bus, _PARK_FAILURES)
    began = clock.now()
    while not clock.wait(_PARK_PERIOD_S, hurry):
        travelled_s += _PARK_PERIOD_S
        if clock.now() - began > timeout_s:
            logger.warning("not at rest after %.1f s: the arm is let go where it is", timeout_s)
            return False
        part = min(travelled_s / travel_s, 1.0) if travel_s else 1.0
        goals = {axis.servo: round(start[axis.servo] + part * (axis.rest - start[axis.servo])) for axis in axes}
        line.attempt(None, bus.sync_write, "Goal_Position", goals)
        if part == 1.0 and (line.attempt(False, _is_at_rest, bus, axes) or travelled_s > travel_s + _SETTLE_S):
            return True
    return False


_NEVER = threading.Event()


class _Passing:
    """Passes over what fails on the line of `bus`, and counts it; a port that is gone, or `most` in a row, does not."""

    def __init__(self, bus: Bus, most: int = 1_000_000) -> None:
        self._bus, self._most = bus, most
        self._in_a_row = self.failures = 0
        self.last: BusError | None = None

    def attempt(self, otherwise: T, act: Callable[..., T], *what: Any) -> T:
        """`act(*what)`, or `otherwise` where it fails."""
        try:
            done = act(*what)
        except BusError as error:
            self.failures, self._in_a_row, self.last = self.failures + 1, self._in_a_row + 1, error
            if not self._bus.is_open or self._in_a_row >= self._most:
                raise
            return otherwise
        self._in_a_row = 0
        return done


def _is_off(bus: Bus, servos: Collection[int]) -> bool:
    """Whether torque is off already, everywhere and for certain: somebody else has let go of the arm."""
    found = bus.sync_read("Torque_Enable", servos, tries=1)
    return len(found) == len(servos) and not any(found.values())


def _is_weak(bus: Bus, torque_limits: Mapping[int, int]) -> bool:
    """Whether a servo says that it has not all its force."""
    return any(limit < torque_limits[servo] for servo, limit in bus.sync_read("Torque_Limit", torque_limits).items())


def _settle(bus: Bus, torque_limits: Mapping[int, int]) -> dict[int, int]:
    """Make where the arm is its goal; the force, by id, of the servos that hold themselves there for certain."""
    present = bus.agreed("Present_Position", list(torque_limits), _APART, _READINGS)
    if not present:
        return {}
    goals: dict[int, int] = {}
    for _ in range(_WRITES):
        if wrong := {servo: tick for servo, tick in present.items() if goals.get(servo) != tick}:
            bus.sync_write("Goal_Position", wrong)
            goals |= bus.sync_read("Goal_Position", wrong, tries=1)
    held = [servo for servo, goal in goals.items() if goal == present[servo]]
    force = bus.sync_read("Torque_Limit", held, tries=2) if held else {}
    return {servo: min(limit, torque_limits[servo]) for servo, limit in force.items()}


def _let_go(bus: Bus, torque_limits: Mapping[int, int], energised: set[int], weak: set[int]) -> None:
    """Once: torque off where it may be on, limits back where it is off; the sets lose the servos that confirm it."""
    if energised:
        bus.sync_write("Torque_Enable", dict.fromkeys(sorted(energised), 0))
        found = bus.sync_read("Torque_Enable", sorted(energised), tries=1)
        energised -= {servo for servo, on in found.items() if not on}
    restored = {servo: torque_limits[servo] for servo in sorted(weak - energised)}
    if restored:
        bus.sync_write("Torque_Limit", restored)
        weak -= {
            servo
            for servo, limit in bus.sync_read("Torque_Limit", restored, tries=1).items()
            if limit == restored[servo]
        }


def _is_at_rest(bus: Bus, axes: Sequence[Axis]) -> bool:
    """Servos that do not say where they are may be anywhere."""
    ticks = bus.sync_read("Present_Position", [axis.servo for axis in axes], tries=1)
    return all(
        axis.servo in ticks and abs(ticks[axis.servo] - axis.rest) < _ARRIVED * axis.ticks_per_unit for axis in axes
    )
