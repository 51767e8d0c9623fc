"""A servo's id and baud rate: found out when it is alone on the bus, and set for good."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from edge_runtime.errors import BusError, BusTimeout
from edge_runtime.motors.bus import Bus
from edge_runtime.motors.feetech import BAUD_RATES, MODELS
from edge_runtime.motors.port import BAUD
from edge_runtime.robots.so_servos import MODEL

_CODE = next(code for code, baud in BAUD_RATES.items() if baud == BAUD)


class Identity(NamedTuple):
    id: int
    baud: int

    def __str__(self) -> str:
        """The rate only where it is not the one that all are to have."""
        return f"id {self.id}" + (f" at {self.baud} bit/s" if self.baud != BAUD else "")


def find(bus: Bus) -> Identity:
    """The one servo on the bus, whatever its id and rate; the bus is left at that rate.

    BusError when none answers, several do, or it is no STS3215.
    """
    found: list[Identity] = []
    noise = bus.stray + bus.damaged
    for baud in BAUD_RATES.values():
        bus.set_baud(baud)
        found += [Identity(servo, baud) for servo in bus.discover()]
    if len(found) > 1:
        who = ", ".join(map(str, found))
        raise BusError(f"{len(found)} servos answer ({who}): leave only the one on the adapter", port=bus.port)
    together = BusError("servos answer all at once: leave only the one on the adapter", port=bus.port)
    if not found:
        if bus.stray + bus.damaged > noise:
            raise together
        raise BusError("no servo answers at any rate: is it plugged in, and its supply on?", port=bus.port)
    (identity,) = found
    bus.set_baud(identity.baud)
    if bus.discover() not in ([identity.id], []) or bus.stray + bus.damaged > noise:  # its answer was one of several
        raise together
    model = bus.read(identity.id, "Model_Number")
    if model != MODEL:
        name = MODELS.get(model, "unknown")
        raise BusError(f"this servo is model {model} ({name}), expected {MODEL} ({MODELS[MODEL]})", port=bus.port)
    return identity


def assign(bus: Bus, found: Identity, servo: int) -> None:
    """Make the servo that is `found` id `servo` at 1 Mbit/s, kept over power-off; BusError when it did not come so."""
    bus.set_baud(found.baud)
    bus.establish("Torque_Enable", {found.id: 0})
    bus.establish("Lock", {found.id: 0})
    if found.id != servo:
        bus.sync_write("ID", {found.id: servo})
    if found.baud != BAUD:
        with suppress(BusTimeout):  # its answer may come at the new rate already
            bus.write(servo, "Baud_Rate", _CODE)
        bus.set_baud(BAUD)
    if bus.discover() != [servo]:
        raise BusError(
            f"the servo did not take id {servo} at {BAUD} bit/s: switch its supply off and on", port=bus.port
        )
    bus.establish("Lock", {servo: 1})
