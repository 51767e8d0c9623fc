"""The condition of an SO arm's servos: whether supply, heat and alarms let them be energised, and what mends it if not.

`doctor` shows what these checks find, and `start` refuses by the same before torque.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from edge_runtime.config import SOFollowerConfig
from edge_runtime.errors import BusError
from edge_runtime.motors.bus import Bus
from edge_runtime.motors.feetech import error_names
from edge_runtime.motors.health import WARM
from edge_runtime.robots.so_servos import IDS

COOL = 8  # degrees Celsius below the limit
_COOL_DOWN = "let the arm cool down, with its supply off"

_SENSOR, _HEAT, _CURRENT, _OVERLOAD = 2, 4, 8, 32  # bits of register Status
_DAMAGING = _SENSOR | _HEAT | _CURRENT | _OVERLOAD
_REMEDIES = {
    1: "the supply had broken down: look at its plugs, its cable and what it can deliver",
    _SENSOR: "the servo does not know where it is: replace it, then setup-motors and calibrate",
    _HEAT: _COOL_DOWN,
    _CURRENT: "free what blocks the joint, look for a damaged cable, then switch the servos' supply off and on",
    16: "switch torque off and move the joint into its range by hand",
    _OVERLOAD: "take the load off the joint and free what blocks it, then switch the servos' supply off and on",
}


@dataclass(frozen=True)
class Condition:
    """What a check found in servos that may be energised; `mend`, if any, is what to look at all the same."""

    said: str
    mend: str = ""


def check_supply(bus: Bus, config: SOFollowerConfig) -> Condition:
    """BusError unless every servo is within the voltage limits of its own memory, beyond which it may take harm."""
    servos = list(IDS.values())
    lowest, highest = bus.read_surely("Min_Voltage_Limit", servos), bus.read_surely("Max_Voltage_Limit", servos)
    volts = bus.read_all("Present_Voltage", servos)
    if wrong := [servo for servo, volt in volts.items() if not lowest[servo] <= volt <= highest[servo]]:
        volts |= bus.read_all("Present_Voltage", wrong)  # once may be a dip
    wrong = [servo for servo in wrong if not lowest[servo] <= volts[servo] <= highest[servo]]
    if wrong:
        said = [
            f"{bus.label(servo)} has {volts[servo] / 10:.1f} V,"
            f" and takes {lowest[servo] / 10:.1f}..{highest[servo] / 10:.1f}"
            for servo in wrong
        ]
        raise BusError(
            "; ".join(said),
            port=bus.port,
            motor=wrong[0],
            remedy="use the supply that belongs to these servos, well plugged",
        )
    return Condition(f"{_span([volt / 10 for volt in volts.values()])} V at the servos")


def check_temperature(bus: Bus, config: SOFollowerConfig) -> Condition:
    """BusError when a servo is too hot to start, COOL degrees below `config.max_temperature`."""
    heat = bus.read_all("Present_Temperature", IDS.values())
    warmest = max(heat, key=lambda servo: heat[servo])
    coolest_limit = config.max_temperature - COOL
    if config.max_temperature and heat[warmest] > coolest_limit:
        raise BusError(
            f"{bus.label(warmest)} is {heat[warmest]} °C hot: robot.max_temperature lets it start at {coolest_limit}",
            port=bus.port,
            motor=warmest,
            remedy=_COOL_DOWN,
        )
    said = f"{_span(heat.values())} °C, {bus.label(warmest)} the warmest"
    return Condition(said, _COOL_DOWN if heat[warmest] >= WARM else "")


def check_alarms(bus: Bus, config: SOFollowerConfig) -> Condition:
    """BusError when a servo reports what damages it; an alarm about supply or angle alone is no reason to refuse."""
    status = bus.read_all("Status", IDS.values())
    damaging = {servo: bits & _DAMAGING for servo, bits in status.items() if bits & _DAMAGING}
    told = damaging or {servo: bits for servo, bits in status.items() if bits}
    said = "; ".join(f"{bus.label(servo)} reports {error_names(bits)}" for servo, bits in told.items())
    mends = "; ".join(mend for bit, mend in _REMEDIES.items() if any(bits & bit for bits in told.values()))
    if damaging:
        raise BusError(said, port=bus.port, motor=min(damaging), remedy=mends)
    return Condition(said or "none", mends)


CHECKS: dict[str, Callable[[Bus, SOFollowerConfig], Condition]] = {
    "supply": check_supply,
    "temperature": check_temperature,
    "alarms": check_alarms,
}


def check(bus: Bus, config: SOFollowerConfig) -> None:
    """Raises the BusError of the first check that fails, with its remedy in the message."""
    for each in CHECKS.values():
        each(bus, config)


def _span(values: Collection[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:g}" if low == high else f"{low:g}..{high:g}"
