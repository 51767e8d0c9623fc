"""The arm for the length of a run: started safely, watched over, let go of; after a fault found and started again."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable
from typing import Protocol

from edge_runtime._realtime import ActuatorLoop
from edge_runtime.acting.supervisor.client import Supervisor
from edge_runtime.config import RobotConfig
from edge_runtime.errors import AccessError, ActuatorFault, ConfigError, DeviceError, FollowingFault
from edge_runtime.robots import Robot

log = logging.getLogger(__name__)

BACK_OFF_S = (0.1, 0.2, 0.5, 1.0)  # between two attempts to find the robot; then the last again
STEADY_S = 10.0  # who ran for so long is tried again at once


class ArmListener(Protocol):
    """Who is told what becomes of the arm, in the arm's thread."""

    def arm_starts(self) -> None:
        """Torque is on, and the first tick is next."""

    def arm_failed(self, fault: ActuatorFault) -> None:
        """At once; the stop policy comes after."""

    def arm_rests(self, fault: ActuatorFault) -> ActuatorFault:
        """As far as it can be reached. Returns the fault as it is to be reported."""

    def arm_is_sought(self) -> None:
        """Another attempt begins."""


def check_processors(numbers: Iterable[int]) -> None:
    """Raises ConfigError for one that this process may not run on."""
    here = os.sched_getaffinity(0)
    if unknown := sorted(set(numbers) - here):
        usable = ", ".join(map(str, sorted(here)))
        raise ConfigError(f"cpu_affinity: {unknown[0]} is not one of the processors here, which are {usable}")


class Arm:
    """Runs `loop` on `robot`, which is open, from the safe start to the stop policy, as often as there is a fault.

    `stop` ends it, `hurry` then means limp at once. Without a `supervisor` nothing stops the arm when we are killed.
    """

    def __init__(
        self,
        robot: Robot,
        loop: ActuatorLoop,
        config: RobotConfig,
        listener: ArmListener,
        *,
        stop: threading.Event,
        hurry: threading.Event,
        supervisor: Supervisor | None = None,
        dry_run: bool = False,
        cpus: Iterable[int] = (),
    ) -> None:
        self._robot = robot
        self._loop = loop
        self._config = config
        self._listener = listener
        self._stop = stop
        self._hurry = hurry
        self._supervisor = supervisor
        self._dry_run = dry_run
        self._cpus = set(cpus)

    def run(self) -> None:
        """Until `stop`, in the calling thread.

        Raises DeviceError when the first start fails or the stop policy cannot be carried out, AccessError when
        `realtime` is to be enforced and cannot be, and the ActuatorFault that is waited out no longer, or not at all
        with `reconnect` off. A FollowingFault is not waited out: what is in the way will be there again.
        """
        self._choose_cpus()
        self._loop.check_realtime()
        began_s = time.monotonic()
        try:
            self._live()
            return
        except ActuatorFault as error:
            fault, over = self._listener.arm_rests(error), isinstance(error, FollowingFault)
        attempts, said = 0, ""
        while self._config.reconnect and not over and not self._stop.is_set():
            if time.monotonic() - began_s > STEADY_S:
                attempts = 0
            if self._stop.wait(BACK_OFF_S[min(attempts, len(BACK_OFF_S) - 1)]):
                break
            attempts += 1
            self._listener.arm_is_sought()
            try:
                self._robot.close()
                self._robot.open()
                began_s = time.monotonic()
                self._live()
                return
            except ActuatorFault as error:
                fault, said, over = self._listener.arm_rests(error), "", isinstance(error, FollowingFault)
            except (DeviceError, AccessError) as error:  # a port's permissions come a moment after the port
                began_s = time.monotonic()
                if str(error) != said:
                    said = str(error)
                    log.warning("the arm is waited for: %s", said)
        raise fault

    def _live(self) -> None:
        """From the safe start until the loop ends, and to rest whatever happens."""
        try:
            self._drive()
        except BaseException as error:
            if isinstance(error, ActuatorFault):
                self._listener.arm_failed(error)
            try:
                self._rest()
            except DeviceError as unreachable:
                log.error("stop policy: %s", unreachable)
            raise
        self._rest()

    def _drive(self) -> None:
        pose = self._robot.read() if self._dry_run else self._robot.prepare(self._have_watched, self._stop)
        self._robot.lend()
        self._loop.prime(pose)
        self._listener.arm_starts()
        self._loop.run()

    def _have_watched(self) -> None:
        if self._supervisor is not None:
            self._supervisor.arm(self._robot.fileno(), self._robot.stop_plan(self._config.stop_policy))

    def _rest(self) -> None:
        if self._supervisor is not None and self._supervisor.has_acted:
            self._supervisor.stand_down()  # first it ends: a bus has one owner
        try:
            self._robot.stop(self._config.stop_policy, self._hurry)
        except DeviceError as error:
            if self._supervisor is None or not self._supervisor.act():
                raise
            log.warning("the supervisor let go of the arm, since we could not: %s", error)
        else:
            self._stand_down()

    def _stand_down(self) -> None:
        if self._supervisor is not None:
            self._supervisor.stand_down()

    def _choose_cpus(self) -> None:
        if self._cpus:
            try:
                os.sched_setaffinity(0, self._cpus)
            except OSError as error:
                raise ConfigError(f"cpu_affinity: {sorted(self._cpus)}: {error.strerror}") from error
