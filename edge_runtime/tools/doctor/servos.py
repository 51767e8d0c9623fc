"""Are the six servos the right ones, well, and calibrated as the file says? Only reads."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator

from edge_runtime.config import SOFollowerConfig
from edge_runtime.errors import BusError, BusTimeout, ConfigError, DeviceError
from edge_runtime.motors import calibration as calibrations
from edge_runtime.motors.bus import Bus
from edge_runtime.motors.calibration import JOINTS
from edge_runtime.motors.feetech import MODELS, error_names
from edge_runtime.motors.health import WARM
from edge_runtime.robots import so_servos
from edge_runtime.robots.so_servos import IDS, MODEL
from edge_runtime.tools.doctor.finding import Finding, Group

ARM = Group("arm")

READS = 50
PERIOD_PART = 1 / 4  # of a tick, for the slowest of twenty reads


def examine(bus: Bus, config: SOFollowerConfig, period_s: float) -> Iterator[Finding]:
    """`bus` is open; `period_s` is that of the loop."""
    try:
        so_servos.check_models(bus)
        so_servos.check_firmware(bus)
        yield ARM.ok("servos", f"six {MODELS[MODEL]} at ids 1..6, firmware {_firmware(bus)}")
        yield _supply(bus)
        yield _heat(bus, config.max_temperature)
        yield from _alarms(bus)
        yield _speed(bus, period_s)
    except BusError as error:
        yield ARM.failed("servos", error, _how_to_reach(bus, error))
        return
    try:
        file = calibrations.locate(config)
        so_servos.check_calibration(bus, calibrations.load(file), file)
    except ConfigError as error:
        yield ARM.failed("calibration", error, "edge-runtime calibrate, with the same --robot flags")
    else:
        yield ARM.ok("calibration", f"{file}, and the same in the servos")


def torque(bus: Bus) -> dict[int, int]:
    """Which servos are energised, by id."""
    return bus.read_all("Torque_Enable", IDS.values())


def _firmware(bus: Bus) -> str:
    return f"{bus.read(1, 'Firmware_Major_Version')}.{bus.read(1, 'Firmware_Minor_Version')}"


def _supply(bus: Bus) -> Finding:
    """Every servo within the limits of its own memory, beyond which it raises its alarm."""
    volts = bus.read_all("Present_Voltage", IDS.values())
    lowest, highest = bus.read_all("Min_Voltage_Limit", IDS.values()), bus.read_all("Max_Voltage_Limit", IDS.values())
    said = f"{_span([volt / 10 for volt in volts.values()])} V at the servos"
    wrong = [
        f"{bus.label(servo)} has {volt / 10:.1f} V, and takes {lowest[servo] / 10:.1f}..{highest[servo] / 10:.1f}"
        for servo, volt in volts.items()
        if not lowest[servo] <= volt <= highest[servo]
    ]
    if wrong:
        return ARM.failed(
            "supply", DeviceError("; ".join(wrong)), "the supply that belongs to these servos, well plugged"
        )
    return ARM.ok("supply", said)


def _heat(bus: Bus, stop_at: int) -> Finding:
    heat = bus.read_all("Present_Temperature", IDS.values())
    warmest = max(heat, key=lambda servo: heat[servo])
    said = f"{_span(heat.values())} °C, {bus.label(warmest)} the warmest"
    if stop_at and heat[warmest] >= stop_at:
        return ARM.failed(
            "temperature", DeviceError(f"{said}; from {stop_at} on the arm stops"), "let the arm cool down"
        )
    if heat[warmest] >= WARM:
        return ARM.warning("temperature", said, "let the arm cool down")
    return ARM.ok("temperature", said)


def _alarms(bus: Bus) -> Iterator[Finding]:
    status = bus.read_all("Status", IDS.values())
    reports = [f"{bus.label(servo)} reports {error_names(bits)}" for servo, bits in status.items() if bits]
    if reports:
        mend = "let it cool, free what blocks it, then switch the servos' supply off and on"
        yield ARM.failed("alarms", DeviceError("; ".join(reports)), mend)


def _speed(bus: Bus, period_s: float) -> Finding:
    """How long the loop will wait for six positions."""
    took = []
    for _ in range(READS):
        started_s = time.monotonic()
        bus.read_all("Present_Position", IDS.values())
        took.append(time.monotonic() - started_s)
    median, slow = sorted(took)[READS // 2], sorted(took)[READS * 95 // 100]
    said = f"six positions in {median * 1e3:.1f} ms, p95 {slow * 1e3:.1f} ms"
    missed = sum(bus.misses.values())
    if missed or bus.damaged:  # first: these answers are waited for, and make it slow too
        return ARM.warning("bus", f"{said}; {_damage(missed, bus.damaged)}", "the servo cables: plugs, length, chafing")
    if slow > period_s * PERIOD_PART:
        mend = "the adapter's latency timer, a hub in between, or a loop slower than this"
        return ARM.warning("bus", f"{said}, of {period_s * 1e3:.0f} ms", mend)
    return ARM.ok("bus", said)


def _span(values: Collection[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:g}" if low == high else f"{low:g}..{high:g}"


def _damage(missed: int, damaged: int) -> str:
    words = ((missed, "answers missing"), (damaged, "damaged"))
    return ", ".join(f"{count} {what}" for count, what in words if count)


def _how_to_reach(bus: Bus, error: BusError) -> str:
    if not bus.is_open:
        return "plug the adapter in again"
    if "echo" in str(error) or "returns what is sent" in str(error):
        return "--robot.echo=true for a bare UART, false for an adapter"
    if "firmware" in str(error):
        return "Feetech's own tool updates firmware"
    if error.motor is None:
        return "switch the servos' supply on, and check the cable from the adapter to the first servo"
    if isinstance(error, BusTimeout) or "no answer" in str(error):
        where = JOINTS[error.motor - 1]
        return f"the cable to the {where}; if it was never set up: edge-runtime setup-motors --joint={where}"
    return "an SO-100 or SO-101 has an STS3215 there"
