"""Are the six servos the right ones, well, and calibrated as the file says? Only reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from edge_runtime.config import SOFollowerConfig
from edge_runtime.errors import BusError, BusTimeout, ConfigError
from edge_runtime.motors import calibration as calibrations
from edge_runtime.motors.bus import Bus
from edge_runtime.motors.calibration import JOINTS
from edge_runtime.motors.feetech import MODELS
from edge_runtime.robots import so_condition, so_servos
from edge_runtime.robots.so_condition import Condition
from edge_runtime.robots.so_servos import IDS, MODEL
from edge_runtime.tools.doctor.finding import Finding, Group
from edge_runtime.tools.doctor.port import shorten_latency

ARM = Group("arm")

READS = 50
ALONE = 9
KEEPS_S = 0.006  # more than a USB frame and a busy machine, less than half a latency timer of 16 ms
PERIOD_PART = 1 / 4  # of a tick, for the slowest of twenty reads


def examine(bus: Bus, config: SOFollowerConfig, period_s: float) -> Iterator[Finding]:
    """`bus` is open; `period_s` is that of the loop."""
    try:
        so_servos.check_models(bus)
        so_servos.check_firmware(bus)
        yield ARM.ok("servos", f"six {MODELS[MODEL]} at ids 1..6, firmware {_firmware(bus)}")
        for about, check in so_condition.CHECKS.items():
            yield _condition(bus, config, about, check)
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


def _condition(
    bus: Bus, config: SOFollowerConfig, about: str, check: Callable[[Bus, SOFollowerConfig], Condition]
) -> Finding:
    try:
        found = check(bus, config)
    except BusError as error:
        if not error.remedy:  # it could not be asked
            raise
        return ARM.refused(about, error)
    return ARM.warning(about, found.said, found.mend) if found.mend else ARM.ok(about, found.said)


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
        alone = _one_answer_s(bus)
        if alone > KEEPS_S:  # the wire takes a thousandth of that
            said = f"{said}, of {period_s * 1e3:.0f} ms; the adapter keeps every answer for {alone * 1e3:.0f} ms"
            return ARM.warning("bus", said, shorten_latency(bus.port))
        mend = "a hub in between, or a loop slower than this"
        return ARM.warning("bus", f"{said}, of {period_s * 1e3:.0f} ms", mend)
    return ARM.ok("bus", said)


def _one_answer_s(bus: Bus) -> float:
    """How long one servo's short answer takes, as a rule: what an adapter with a latency timer waits with."""
    took = []
    for _ in range(ALONE):
        started_s = time.monotonic()
        bus.read(1, "Present_Temperature")
        took.append(time.monotonic() - started_s)
    return sorted(took)[ALONE // 2]


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
