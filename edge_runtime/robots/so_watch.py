"""What the loop sees of an arm's servos, in words: who is silent, who reports an error, who is unwell."""

from __future__ import annotations

import logging
from typing import Any

from edge_runtime.motors.calibration import JOINTS
from edge_runtime.motors.feetech import error_names
from edge_runtime.motors.health import Health

logger = logging.getLogger(__name__)

_SILENT = "silent"


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
        silent: list[str] = []
        well: list[str] = []
        for number, joint in enumerate(JOINTS, start=1):
            who = f"{joint} (id {number})"
            flags = self._port.last_errors[number - 1]
            now = health[joint].complaints(self._best_voltage) if joint in health else {}
            if flags:
                now["flags"] = f"reports {error_names(flags)}"
            if number in self._port.silent:
                now[_SILENT] = ""
            before, self._complaints[joint] = self._complaints[joint], now
            new = now.keys() - before
            if _SILENT in new:
                silent.append(who)
            if told := [now[kind] for kind in sorted(new - {_SILENT})]:
                logger.warning("%s %s", who, ", ".join(told))
            if before and not now:
                well.append(who)
        if silent:
            logger.warning("%s", _said(silent, "does not answer", "do not answer", "no servo answers"))
        if well:
            logger.info("%s", _said(well, "is well again", "are well again", "all servos are well again"))

    def health(self) -> dict[str, Health]:
        """The last reading of each joint that was asked."""
        return {joint: Health.of(*each) for joint, each in zip(JOINTS, self._port.health, strict=True) if each}


def _said(joints: list[str], one: str, several: str, all_of_them: str) -> str:
    """A line that breaks takes all servos along: one sentence then."""
    if len(joints) == len(JOINTS):
        return all_of_them
    return f"{', '.join(joints)} {one if len(joints) == 1 else several}"
