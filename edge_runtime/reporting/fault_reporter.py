"""What becomes of the arm, told to all who must know: the state, the plan, systemd, and a file for people."""

from __future__ import annotations

import logging
import time
from collections import deque
from datetime import datetime
from pathlib import Path
from typing import Any

from edge_runtime.errors import ActuatorFault, OutputError
from edge_runtime.planning.planner import Planner
from edge_runtime.program.notify import Notifier
from edge_runtime.reporting.fault_record import FaultRecord, Tick
from edge_runtime.reporting.state import RuntimeState
from edge_runtime.robots import Robot

log = logging.getLogger(__name__)

LISTED = 100  # faults


class FaultReporter:
    """The arm's listener. `faults` lists the last, of `count`, for the summary: time since the start, sentence, file.

    `rests_within_s` is how long the stop policy may take.
    """

    def __init__(
        self,
        robot: Robot,
        planner: Planner,
        state: RuntimeState,
        systemd: Notifier,
        *,
        control_hz: float,
        folder: Path,
        rests_within_s: float,
    ) -> None:
        self._robot = robot
        self._planner = planner
        self._state = state
        self._systemd = systemd
        self._control_hz = control_hz
        self._folder = folder
        self._rests_within_s = rests_within_s
        self.count = 0
        self.faults: deque[dict[str, Any]] = deque(maxlen=LISTED)

    def arm_starts(self) -> None:
        if self._state.current == "fault":
            self._state.enter("starting", time.monotonic())

    def arm_failed(self, fault: ActuatorFault) -> None:
        """The plan is forgotten: what was meant for an arm that ran is nothing for one that starts again."""
        self._state.enter("fault", time.monotonic())
        self._planner.forget_plan()
        self._systemd.busy(self._rests_within_s)

    def arm_rests(self, fault: ActuatorFault) -> ActuatorFault:
        self._systemd.busy()
        at_s = next((at_s for at_s, state in reversed(self._state.changes) if state == "fault"), 0.0)
        record = FaultRecord(
            error=str(fault),
            time=datetime.now().astimezone().isoformat(timespec="milliseconds"),
            control_hz=self._control_hz,
            joints=[joint.name.removesuffix(".pos") for joint in self._robot.joints],
            units=[joint.unit for joint in self._robot.joints],
            states=[*self._state.changes],
            bus=self._robot.report(),
            ticks=[Tick(**tick) for tick in fault.ticks],
        )
        path = ""
        try:
            path = str(record.save(self._folder))
        except OutputError as error:
            log.warning("%s", error)
        self.count += 1
        self.faults.append({"time_s": at_s, "error": str(fault), "file": path})
        if path:
            fault = type(fault)(f"{fault} (its last ticks: edge-runtime replay-fault {path})", ticks=fault.ticks)
        log.error("%s", fault)
        return fault

    def arm_is_sought(self) -> None:
        self._systemd.alive()
