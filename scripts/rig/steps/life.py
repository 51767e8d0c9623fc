"""The life of an arm on a virtual clock: the product's own arm, loop, planner and stops, with one failure in it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from edge_runtime._realtime import ActuatorLoop
from edge_runtime.acting.arm import Arm
from edge_runtime.acting.loop import make_loop
from edge_runtime.config import SO101FollowerConfig, StartConfig, StopPolicy
from edge_runtime.errors import DeviceError, EdgeRuntimeError
from edge_runtime.motors.bus import Bus
from edge_runtime.motors.calibration import JOINTS
from edge_runtime.motors.stopping import StopPlan, carry_out
from edge_runtime.planning.planner import Planner, PlannerSettings
from edge_runtime.planning.sensors import Sensors
from edge_runtime.planning.task import Task
from edge_runtime.program.notify import Notifier
from edge_runtime.reporting.fault_reporter import FaultReporter
from edge_runtime.reporting.state import RuntimeState
from edge_runtime.robots import Vector
from edge_runtime.robots.so_follower import SOFollower
from edge_runtime.robots.so_servos import IDS, memory
from edge_runtime.virtual_arm.calibration import CALIBRATION, write_calibration
from edge_runtime.virtual_arm.chain import WEIGHTS
from edge_runtime.virtual_arm.moments import Moment
from edge_runtime.virtual_arm.motion import Weight
from edge_runtime.wire.messages import Joint, Policy
from scripts.rig.steps.line import Goals, Killed, StepBus, StepPort, Time

Part = Literal["start", "first start", "run", "stop", "supervisor"]

SIGNALS = ("killed", "terminated", "stopped")  # SIGKILL; SIGTERM, and SIGKILL a little later; SIGSTOP for half a second
FPS = 30.0
RUN_S = 2.0
SHORT_RUN_S = 0.1  # of a life that is about its start or its end
PATIENCE_S = 8.0  # then the run is told to stop
ROWS = 100  # of the plan: longer than the run, so that one that goes on after a fault is seen
MAX_SPEED = 60.0
MAX_ACCELERATION = 600.0
REACH = 20.0
LOAD = 3.0  # times its own weight

STANDING = [880, 1900, 2100, 2200, 2300, 2500]  # the first is near the end of its range
SUNK = [880, 2300, 2100, 2200, 2300, 2500]


@dataclass(frozen=True)
class Step:
    """The `at`-th transaction of `part` fails as `kind` says, in a life that ends as `policy` says; 0: none does."""

    part: Part
    policy: StopPolicy
    kind: str
    at: int

    def __str__(self) -> str:
        return f"{self.part}, {self.policy}: {self.kind} at transaction {self.at}"


@dataclass
class Account:
    """What became of it, by the servos' own log; `parts` are (first moment, its part)."""

    step: Step
    moments: list[Moment]
    parts: list[tuple[int, str]]
    goals: list[Goals]
    faults: int = 0  # of the loop, after each of which the plan is void
    error: EdgeRuntimeError | None = None  # what the run ended with, and its exit code
    torque: list[int] = field(default_factory=list)  # in the end
    late_s: float = 0.0  # by which the machine may have delayed what happened
    transactions: int = 0  # of the part
    ended: bool = True  # all who had a hand in it


def settings(folder: Path, policy: StopPolicy, *, echo: bool = False, port: str = "virtual") -> StartConfig:
    robot = SO101FollowerConfig(
        id="virtual",
        port=port,
        calibration_dir=folder,
        stop_policy=policy,
        max_speed=MAX_SPEED,
        max_acceleration=MAX_ACCELERATION,
        max_relative_target=REACH,
        bus_timeout_ms=20.0,  # these servos are a program, and share the machine with whatever else it does
        echo=echo,
    )
    return StartConfig(robot=robot, fps=FPS, aggregate_fn_name="latest_only")


class WatchedFollower(SOFollower):
    """Tells which part of its life it lives."""

    def __init__(self, *of_follower: Any, enter: Any) -> None:
        super().__init__(*of_follower)
        self._enter = enter

    def prepare(self, *of_prepare: Any) -> Vector:
        self._enter("start")
        return super().prepare(*of_prepare)

    def lend(self) -> None:
        super().lend()
        self._enter("run")

    def stop(self, policy: StopPolicy, hurry: threading.Event) -> None:
        self._enter(policy)
        super().stop(policy, hurry)


class Nothing:
    """A link to a server that never answers."""

    def send(self, observation: Any) -> bool:
        return False

    is_uploading = False

    def suspect(self) -> None:
        pass


class Watcher:
    """The supervisor's work in this process, by its own code, on the same clock and servos."""

    def __init__(self, bus: StepBus, clock: Time) -> None:
        self._bus, self._clock = bus, clock
        self._plan: StopPlan | None = None
        self.has_acted = False
        self.error: DeviceError | None = None
        self.words = memoryview(bytearray(24)).cast("q")

    @property
    def watches(self) -> bool:
        return self._plan is not None

    def arm(self, fd: int, plan: StopPlan) -> None:
        self._plan = StopPlan.decode(plan.encode())

    def stand_down(self) -> None:
        self._plan = None

    def act(self) -> bool:
        """The runtime could not let go of the arm."""
        plan, self._plan = self._plan, None
        return plan is not None and self._carry_out(replace(plan, policy="limp"))

    def take_over(self) -> None:
        """The runtime is gone."""
        plan, self._plan = self._plan, None
        if plan is not None:
            self._carry_out(plan)

    def _carry_out(self, plan: StopPlan) -> bool:
        self._bus.enter(plan.policy)
        try:
            with Bus(StepPort(self._bus, self._clock), timeout_s=plan.timeout_s, echo=plan.echo) as bus:
                carry_out(bus, plan, threading.Event(), self._clock)
        except DeviceError as error:
            self.error = error
            return False
        return True


class Stopping(threading.Event):
    """Is waited for on the clock of the arm."""

    def __init__(self, clock: Time) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None, "nothing else would let this time pass"
        return self._clock.wait(timeout, self)


class Life:
    """From the start of a sunk or standing arm to its rest."""

    def __init__(self, folder: Path, step: Step) -> None:
        self.step = step
        self.clock = Time()
        self.stop, self.hurry = Stopping(self.clock), threading.Event()
        self.bus = StepBus(clock=self.clock, wire_time=True, weights=weights(step))
        self.bus.later, self.bus.strike = self.clock.after, self._strike
        echo = step.kind == "echo lost"
        self._config = settings(folder, step.policy, echo=echo)
        self._port = StepPort(self.bus, self.clock)
        self._watcher = Watcher(self.bus, self.clock)
        bus = Bus(self._port, names={number: joint for joint, number in IDS.items()}, echo=echo)
        self.robot = WatchedFollower(self._config.robot, self.clock, bus, enter=self._enter)
        self.planner, self.loop, self.reporter = assemble(self._config, self.robot, self._watcher.words, folder)
        self._runs = 0
        lay(self.bus, step)

    def live(self) -> Account:
        """All of it; what the servos say about it."""
        step, error = self.step, None
        arm = Arm(
            self.robot,
            self,  # type: ignore[arg-type]
            self._config.robot,
            self.reporter,
            stop=self.stop,
            hurry=self.hurry,
            supervisor=None if step.policy == "hold" else self._watcher,  # type: ignore[arg-type]
        )
        self.clock.after(PATIENCE_S, self.stop.set)  # a line that is silent for good is sought for ever
        with self.bus:
            try:
                self.robot.open()
                if step.part in ("start", "first start"):
                    self.bus.arm_at(step.at, step.kind)
                arm.run()
                if step.policy == "hold":  # what a hold leaves is there for the next start
                    self.stop.clear()
                    self.robot.prepare()
                    self.robot.stop("limp", self.hurry)
            except EdgeRuntimeError as failed:
                error = failed
                if step.policy == "hold":
                    with suppress(DeviceError):
                        self.robot.stop("limp", self.hurry)
            except Killed:
                self._watcher.take_over()
            transactions = self.bus.count
            self.clock.wait(1.5, self.hurry)  # supply and adapter come back; nothing more is to happen
            self.bus.advance()
            self._port.dead = False
            self.robot.close()
        return Account(
            step,
            list(self.bus.moments),
            list(self.bus.parts),
            list(self.bus.goals),
            faults=self.reporter.count,
            error=error or self._watcher.error,
            torque=self.bus.values("Torque_Enable"),
            transactions=transactions,
        )

    # what the arm takes for its loop

    def check_realtime(self) -> None:
        """This time is no machine's."""

    def prime(self, pose: Vector) -> None:
        self.loop.prime(pose)

    def run(self) -> None:
        """Tick at every deadline of the virtual clock: for two seconds, and after a fault for half of one."""
        self._runs += 1
        if self._runs == 1:
            self.planner.ring.merge(0, plan(), self.planner._session)
        if self.step.part == "run" and self._runs == 1:
            self.bus.arm_at(self.step.at, self.step.kind)
        lasts_s = RUN_S if self.step.part == "run" and self._runs == 1 else SHORT_RUN_S
        for _ in range(round(lasts_s * FPS)):
            self._tick()
            self.clock.wait(1 / FPS, self.hurry)
        if self._runs == 1 and self.step.part == "supervisor":
            self.bus.arm_at(self.step.at, self.step.kind)
            self._port.dead = True  # and the supervisor's is another
            raise Killed
        if self._runs == 1 and self.step.part == "stop":
            self.bus.arm_at(self.step.at, self.step.kind)
        self.stop.set()

    def _tick(self) -> None:
        written = len(self.bus.goals)
        self.loop.tick(int(self.clock.seconds * 1e9))
        with self.bus.heard:  # the servos' side has a thread: let it take the goals before time goes on
            self.bus.heard.wait_for(lambda: len(self.bus.goals) > written or not self.bus.plugged, 1.0)
        if self._port.dead:
            raise Killed

    def _strike(self, kind: str) -> None:
        if kind == "killed":
            self._port.dead = True

    def _enter(self, part: str) -> None:
        if self._port.dead:
            raise Killed
        self.bus.enter(part)


class Reporter(FaultReporter):
    """The product's, without the file."""

    def arm_rests(self, fault: Any) -> Any:
        self.count += 1
        return fault


def assemble(
    config: StartConfig, robot: SOFollower, page: memoryview | None, folder: Path
) -> tuple[Planner, ActuatorLoop, Reporter]:
    """The product's, for a server that never answers; `page` is the supervisor's, if there is one."""
    joints = tuple(Joint(f"{name}.pos", "percent" if name == "gripper" else "degrees") for name in JOINTS)
    policy = Policy("steps", "act", bytes(range(32)), joints, (), (), chunk_size=ROWS, fps=FPS)
    planner = Planner(Sensors(policy, {}, {}, False, 0.5, Task("")), PlannerSettings.of(config), Nothing())
    loop = make_loop(config, robot, planner.ring, history_s=0.5, page=page)
    reporter = Reporter(
        robot,
        planner,
        RuntimeState(0.0),
        Notifier(),
        control_hz=FPS,
        folder=folder / "faults",
        rests_within_s=3.0,
    )
    return planner, loop, reporter


def weights(step: Step) -> dict[int, Weight]:
    """Of the joints: of an arm that carries something, so that it sinks as soon as a ramp has begun.

    Where it is sunk it lies on something, and the start need not wait until it is down.
    """
    sunk = step.part in ("start", "first start")
    return {
        number: Weight(LOAD * weight.pull, SUNK[number - 1] if sunk else weight.rest)
        for number, weight in WEIGHTS.items()
    }


def lay(bus: StepBus, step: Step) -> None:
    """The arm as the start finds it: set up before and standing, or sunk with torque still on."""
    config = SO101FollowerConfig
    gains = (config.position_p_coefficient, config.position_i_coefficient, config.position_d_coefficient)
    fresh = step.part == "first start"
    for name, values in memory(gains, CALIBRATION).items():
        for number, value in values.items():
            bus.servos[number].set(name, 32 if fresh and name == "P_Coefficient" else value)
    for servo in bus.servos.values():
        servo.power_cycle()
    if step.kind == "echo lost":
        bus.inject({"fault": "echo"})
    if step.part not in ("start", "first start"):
        bus.place(STANDING)
        return
    bus.place(SUNK)
    for servo, goal in zip(bus.servos.values(), STANDING, strict=True):
        servo.set("Torque_Enable", 1)
        servo.set("Torque_Limit", 0)
        servo.set("Goal_Position", goal)
    bus.advance()
    bus.moments.clear()


def plan() -> Any:
    """(ROWS, 6) units: jumps to and fro, by more than speed and acceleration allow, and beyond the range."""
    start = np.array([(tick - 2048) * 360 / 4095 for tick in STANDING], np.float32)
    start[5] = 50
    rows = np.arange(ROWS)[:, None]
    return (start + np.where(rows // 18 % 2 == 0, -15.0, 12.0)).astype(np.float32)


@contextmanager
def quiet() -> Iterator[None]:
    """What the product says to a failure is not read here, three thousand times."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def live(folder: Path, step: Step) -> Account:
    """Live through `step`; `folder` is for the calibration."""
    if not (folder / "virtual.json").exists():
        write_calibration(folder, "virtual")
    with quiet():
        return Life(folder, step).live()
