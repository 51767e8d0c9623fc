"""How a servo feels: load, supply, heat and current, and from where on that deserves a word."""

from __future__ import annotations

from dataclasses import dataclass

WARM = 60  # degrees Celsius; the servo lets go by itself at 70
SAG = 0.85  # of the highest voltage seen: the supply is too weak for what the arm does
HEAVY = 80.0  # percent of the duty; above it the servo's own overload timer runs
AMPERE = 0.0065  # a unit of the register
_MAGNITUDES = {"load": 0x3FF, "current": 0x7FFF}  # without the sign bit


@dataclass(frozen=True)
class Health:
    """One reading. Load in percent of the duty, voltage in V, temperature in degrees Celsius, current in A."""

    load: float
    voltage: float
    temperature: int
    current: float

    @classmethod
    def of(cls, load: int, voltage: int, temperature: int, current: int) -> Health:
        """From the registers Present_Load, Present_Voltage, Present_Temperature and Present_Current."""
        return cls(
            load=(load & _MAGNITUDES["load"]) / 10,
            voltage=voltage / 10,
            temperature=temperature,
            current=round((current & _MAGNITUDES["current"]) * AMPERE, 3),
        )

    def complaints(self, best_voltage: float) -> dict[str, str]:
        """What is beyond its warning level, and how far; `best_voltage` is the highest that this supply has shown."""
        found = {}
        if self.temperature >= WARM:
            found["warm"] = f"is {self.temperature} °C warm"
        if self.voltage < SAG * best_voltage:
            found["sags"] = f"is at {self.voltage:.1f} V, of {best_voltage:.1f}"
        if self.load >= HEAVY:
            found["heavy"] = f"is under {self.load:.0f} % load"
        return found
