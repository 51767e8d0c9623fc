"""What the loop sees of an arm's servos, in words: who is silent, who reports an error, who is unwell."""

from __future__ import annotations

import logging
from typing import Any

from edge_runtime.motors.calibration import JOINTS
from edge_runtime.motors.feetech import error_names
from edge_runtime.motors.health import Health

logger = logging.getLogger(__name__)


class ServoWatch:
    """Looks at the counters of `port` (a FeetechPort); says once what begins, and once that a joint is well again."""

    def __init__(self, port: Any) -> None:
        self._port = port
        self._seen: tuple[Any, ...] = ()
        self._best_voltage = 0.0
        self._complaints: dict[str, dict[str, str]] = {joint: {} for joint in JOINTS}

    def look(self) -> None:
        """Cheap enough for every record: most looks see nothing new."""
        seen = (self._port.silent, self._port.last_errors, self._port.checks)
        if seen == self._seen:
            return
        self._seen = seen
        health = self.health()
        self._best_voltage = max([self._best_voltage, *(each.voltage for each in health.values())])
        for number, joint in enumerate(JOINTS, start=1):
            flags = self._port.last_errors[number - 1]
            now = health[joint].complaints(self._best_voltage) if joint in health else {}
            if flags:
                now["flags"] = f"reports {error_names(flags)}"
            if number in self._port.silent:
                now["silent"] = "does not answer"
            self._tell(f"{joint} (id {number})", self._complaints[joint], now)
            self._complaints[joint] = now

    def health(self) -> dict[str, Health]:
        """The last reading of each joint that was asked."""
        return {joint: Health.of(*each) for joint, each in zip(JOINTS, self._port.health, strict=True) if each}

    def _tell(self, who: str, before: dict[str, str], now: dict[str, str]) -> None:
        if new := now.keys() - before:
            logger.warning("%s %s", who, ", ".join(now[kind] for kind in sorted(new)))
        elif before and not now:
            logger.info("%s is well again", who)
