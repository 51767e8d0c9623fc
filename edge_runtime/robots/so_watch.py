"""What the loop sees of an arm's servos, in words: which is silent, reports an error, or is unwell."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from time import monotonic
from typing import Any

from edge_runtime.motors.calibration import JOINTS
from edge_runtime.motors.feetech import error_names
from edge_runtime.motors.health import Health
from edge_runtime.program.spell import Spell

logger = logging.getLogger(__name__)

_SILENT = "silent"


class ServoWatch:
    """Looks at the counters of `port` (a FeetechPort); says once what begins, and once that a joint is well again.

    A joint is well again when nothing was wrong with it for a while (`Spell`): a load that comes and goes is one spell.
    """

    def __init__(self, port: Any, clock: Callable[[], float] = monotonic) -> None:
        self._port = port
        self._clock = clock
        self._seen: tuple[Any, ...] = ()
        self._best_voltage = 0.0
        self._spells: dict[str, defaultdict[str, Spell]] = {joint: defaultdict(Spell) for joint in JOINTS}
        self._unwell = False

    def look(self) -> None:
        """Cheap enough for every record: most looks see nothing new."""
        seen = (self._port.silent, self._port.last_errors, self._port.checks)
        if seen == self._seen and not self._unwell:
            return
        self._seen = seen
        health = self.health()
        self._best_voltage = max([self._best_voltage, *(each.voltage for each in health.values())])
        now_s = self._clock()
        silent: list[str] = []
        well: list[str] = []
        for number, joint in enumerate(JOINTS, start=1):
            name = f"{joint} (id {number})"
            spells = self._spells[joint]
            wrong = self._wrong(number, health.get(joint))
            begun = {kind for kind in wrong if spells[kind].fails(now_s)}
            ended = [spell.succeeds(now_s) for kind, spell in spells.items() if kind not in wrong]
            if _SILENT in begun:
                silent.append(name)
            if told := [wrong[kind] for kind in sorted(begun - {_SILENT})]:
                logger.warning("%s %s", name, ", ".join(told))
            if any(ended) and not any(spell.lasts for spell in spells.values()):
                well.append(name)
        self._unwell = any(spell.lasts for spells in self._spells.values() for spell in spells.values())
        if silent:
            logger.warning("%s", _said(silent, "does not answer", "do not answer", "no servo answers"))
        if well:
            logger.info("%s", _said(well, "is well again", "are well again", "all servos are well again"))

    def _wrong(self, number: int, health: Health | None) -> dict[str, str]:
        """What is wrong with the servo `number` now, by kind."""
        wrong = health.complaints(self._best_voltage) if health else {}
        if flags := self._port.last_errors[number - 1]:
            wrong["flags"] = f"reports {error_names(flags)}"
        if number in self._port.silent:
            wrong[_SILENT] = ""
        return wrong

    def health(self) -> dict[str, Health]:
        """The last reading of each joint that was asked."""
        return {joint: Health.of(*each) for joint, each in zip(JOINTS, self._port.health, strict=True) if each}


def _said(joints: list[str], one: str, several: str, all_of_them: str) -> str:
    """A line that breaks takes all servos along: one sentence then."""
    if len(joints) == len(JOINTS):
        return all_of_them
    return f"{', '.join(joints)} {one if len(joints) == 1 else several}"
