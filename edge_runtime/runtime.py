"""The composition root: builds every part of the robot's side, runs it, and stops it in reverse."""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from edge_runtime.acting.arm import Arm, check_processors
from edge_runtime.acting.loop import make_loop
from edge_runtime.acting.supervisor.client import Supervisor, watch_over
from edge_runtime.cameras import Camera, make_camera
from edge_runtime.config import StartConfig
from edge_runtime.episodes import Episodes, EpisodeSeries
from edge_runtime.errors import DeviceError, EdgeRuntimeError, OutputError
from edge_runtime.link.channel import Access
from edge_runtime.link.handshake import choose, introduce
from edge_runtime.link.local_server import LocalServer
from edge_runtime.link.stream import PolicyStream
from edge_runtime.planning import aggregation
from edge_runtime.planning.extra_state import make_vector
from edge_runtime.planning.planner import Planner, PlannerSettings
from edge_runtime.planning.sensors import Sensors
from edge_runtime.planning.task import Task
from edge_runtime.program import extras, output
from edge_runtime.program.logs import BackgroundStream
from edge_runtime.program.notify import Notifier
from edge_runtime.program.signals import handling_signals
from edge_runtime.reporting import fault_record, summary
from edge_runtime.reporting.fault_reporter import FaultReporter
from edge_runtime.reporting.loop_news import LoopNews
from edge_runtime.reporting.loop_watch import GoalPrinter, watch_loop
from edge_runtime.reporting.queue_log import QueueLog
from edge_runtime.reporting.run_stats import RecordListener, RunStats
from edge_runtime.reporting.state import RuntimeState
from edge_runtime.reporting.status_line import StatusLine
from edge_runtime.reporting.summary import Report
from edge_runtime.robots import Robot, make_robot
from edge_runtime.timing import StageTimes

log = logging.getLogger(__name__)

LEFT_AFTER_S = 5.0  # a thread that waits for somebody else's answer, or for a terminal that was stopped
STOPPED_WITHIN_S = 75.0  # the longest park_timeout_s and then limp; as TimeoutStopSec of the service


def run(config: StartConfig) -> Report:
    """What `edge-runtime start` does, for a program's main thread: until a signal, the last episode or `duration_s`.

    Returns the report that `summary` writes, empty when stopped before the first tick. Raises what ended the run.
    """
    reports: list[Report] = [{}]
    with watch_over(config) as supervisor:
        Runtime(config, supervisor, tell=lambda stats: reports.append(stats.report())).run()
    return reports[-1]


def _lead(config: StartConfig) -> float:
    """The part of a chunk that is at most left when an observation is sent; sequential always runs dry."""
    if config.mode == "sequential":
        return math.inf
    return 1.0 if config.chunk_size_threshold == "auto" else config.chunk_size_threshold


def print_summary(stats: RunStats) -> None:
    output.say(summary.text(stats.report()))


def _ends() -> list[int]:
    """The signals that stop a run: SIGHUP, of a terminal that is closed, unless it was told to outlive it (nohup)."""
    hang_up = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGTERM, signal.SIGINT, *hang_up]


@dataclass(frozen=True)
class _Met:
    """Devices that are open, and the stream to the policy that they are for."""

    robot: Robot
    cameras: Mapping[str, Camera]  # those of `sensors`, with all that a camera can tell
    sensors: Sensors
    stream: PolicyStream
    server: LocalServer | None  # of our own


class Runtime:
    """One run. Nothing is touched before `run`; `supervisor` stops the arm when this process cannot.

    `screen` is where the status line goes, `listeners` see every record, `stages` takes the time of each stage, `tell`
    is called once at the end, and `idle_gap_s` is the planner's.
    """

    def __init__(
        self,
        config: StartConfig,
        supervisor: Supervisor | None = None,
        *,
        screen: BackgroundStream | None = None,
        listeners: Sequence[RecordListener] = (),
        stages: StageTimes | None = None,
        tell: Callable[[RunStats], None] = print_summary,
        idle_gap_s: float = 0.0,
    ) -> None:
        self._config = config
        self._supervisor = supervisor
        self._stop = threading.Event()  # the run is over, whatever the reason
        self._hurry = threading.Event()  # a second signal: limp at once
        self._signalled = False
        self._failures: list[EdgeRuntimeError] = []  # the first is what the run ends with
        self._ends_with_run: list[Callable[[], None]] = []  # called at once by `stop`
        self._started_s = time.monotonic()
        self._systemd = Notifier()
        self._state = RuntimeState(self._started_s, self._systemd.status)
        self._screen = screen
        self._tell = tell
        self._idle_gap_s = idle_gap_s
        self._stages = stages or StageTimes()
        self._listeners: list[RecordListener] = [*listeners]

    def run(self) -> None:
        """Returns when stopped as asked; raises what ended the run otherwise, the stop policy applied either way."""
        stats = None
        with handling_signals(self._heed, *_ends()):
            try:
                with ExitStack() as stack:
                    met = self._meet(stack)
                    if met is not None:
                        arm, stats = self._assemble(met, stack)
                        self._drive(arm, stats, stack)
                        if met.server is not None and met.server.failed:
                            raise met.server.failure()
            except EdgeRuntimeError as error:
                self._fail(error)
            if stats is not None and stats.loop.counters()["ticks"]:
                try:
                    self._report(stats)
                except OutputError as error:
                    log.error("%s", error)
                    self._fail(error)
        if self._failures:
            raise self._failures[0]

    def stop(self) -> None:
        """End as at a signal; from any thread, twice is harmless.

        The loop ends at once, whatever the other threads wait for: then the arm comes to rest.
        """
        self._stop.set()
        for end in self._ends_with_run:
            end()

    # -- building ---------------------------------------------------------------------------------------------------

    def _meet(self, stack: ExitStack) -> _Met | None:
        """Open the devices and ask the server what it offers. None when stopped in the meantime."""
        config = self._config
        aggregation.for_policy(config.aggregate_fn_name, 0.0)  # what is wrong is told before anything is opened
        task = Task(config.task, config.task_file)
        check_processors(config.cpu_affinity)
        if config.fault_folder is not None:
            output.make_folder(config.fault_folder, "fault_folder")
        if config.metrics_port is not None:
            extras.require("metrics_port", ("prometheus_client",))
        output.check(config.summary, "summary")
        output.check(config.queue_log, "queue_log")
        vectors = {
            f"observation.{name.removeprefix('observation.')}": make_vector(name, source)
            for name, source in config.extra_state.items()
        }
        for vector in vectors.values():
            stack.callback(vector.close)
        server = None
        if config.bundle is not None:
            server = stack.enter_context(LocalServer(config, on_exit=self.stop))
            access = Access(server.address)
        else:
            access = Access(
                config.server_address, tls=config.tls, token_file=config.token_file, insecure=config.insecure
            )
        robot = stack.enter_context(make_robot(config.robot))
        cameras = {name: stack.enter_context(make_camera(name, c)) for name, c in config.robot.cameras.items()}
        stream = PolicyStream(
            access,
            jpeg_quality=config.jpeg_quality,
            lead=_lead(config),
            give_up_after_s=0 if server is not None else config.give_up_after_s,  # ours ends us when it ends
            stages=self._stages,
        )
        self._systemd.ready()
        if server is not None:
            server.wait(self._stop, self._systemd.alive)
        description = stream.describe(self._stop, self._systemd.alive)
        if server is not None and server.failed:
            raise server.failure()
        if description is None:
            return None
        policy = choose(description, config.model)
        used = {vector.name for vector in policy.extra_state}
        for name in sorted(vectors.keys() - used):
            log.warning("%s is not used by policy %s", name, policy.name)
        views = {config.rename_map.get(name, name): camera for name, camera in cameras.items()}
        vectors = {name: vector for name, vector in vectors.items() if name in used}
        still = {config.rename_map.get(name, name) for name, c in config.robot.cameras.items() if c.may_stand_still}
        sensors = Sensors(
            policy, views, vectors, config.resize, config.max_frame_age_s, task, config.max_joint_age_s, still
        )
        return _Met(robot, views, sensors, stream, server)

    def _assemble(self, met: _Met, stack: ExitStack) -> tuple[Arm, RunStats]:
        """Compare robot and policy, and build what the run needs; no torque yet."""
        config, robot, stream, policy = self._config, met.robot, met.stream, met.sensors.policy
        hello = introduce(config, policy, robot, met.cameras, met.sensors.vectors, met.sensors.task.text())
        settings = PlannerSettings.of(config, filtered=hello.similarity_tolerance > 0, idle_gap_s=self._idle_gap_s)
        planner = Planner(met.sensors, settings, stream, stages=self._stages)
        page = self._supervisor.page.words if self._supervisor else None
        loop = make_loop(config, robot, planner.ring, history_s=fault_record.KEPT_S, page=page)
        self._ends_with_run.append(loop.stop)
        self._listeners.append(LoopNews(loop, [joint.name.removesuffix(".pos") for joint in robot.joints]))
        reporter = FaultReporter(
            robot,
            planner,
            self._state,
            self._systemd,
            control_hz=config.fps * config.substeps,
            folder=config.fault_folder or fault_record.default_folder(),
            rests_within_s=STOPPED_WITHIN_S,
        )
        arm = Arm(
            robot,
            loop,
            config.robot,
            reporter,
            stop=self._stop,
            hurry=self._hurry,
            supervisor=self._supervisor,
            dry_run=config.dry_run,
            cpus=config.cpu_affinity,
        )
        stats = RunStats(
            config, hello, met.cameras, robot, loop, planner, stream, reporter, self._state, self._started_s
        )
        if config.metrics_port is not None:
            from edge_runtime.program.exposition import Exposition  # prometheus-client: an extra
            from edge_runtime.reporting.metrics import RunCollector

            stack.enter_context(Exposition(config.metrics_port, RunCollector(stats)))
        if config.queue_log is not None:
            self._listeners.append(stack.enter_context(QueueLog(config.queue_log)))
        if config.status and self._screen is not None and self._screen.isatty():
            self._listeners.append(stack.enter_context(StatusLine(self._screen)))
        if config.dry_run:
            self._listeners.append(GoalPrinter())
        return arm, stats

    # -- running ----------------------------------------------------------------------------------------------------

    def _drive(self, arm: Arm, stats: RunStats, stack: ExitStack) -> None:
        config = self._config
        if self._stop.is_set():
            return
        if config.episodes:
            stats.loop.pause()
        self._thread(stack, "stream", lambda: stats.stream.run(stats.hello, stats.planner), stats.stream.stop)
        self._thread(stack, "arm", arm.run, stats.loop.stop)
        watch = partial(watch_loop, stats, self._listeners, self._systemd, self._stop)
        self._thread(stack, "observer", watch, lambda: None, LEFT_AFTER_S)
        stack.callback(self._begin_to_stop)
        if config.episodes:
            series = EpisodeSeries(Episodes(config.reset_url), stats.loop, stats.planner, stats)
            self._listeners.append(series)
            series.run(range(config.first_seed, config.first_seed + config.episodes), self._stop)
        else:
            self._stop.wait(config.duration_s or None)

    # -- stopping ---------------------------------------------------------------------------------------------------

    def _begin_to_stop(self) -> None:
        self.stop()
        self._systemd.stopping(STOPPED_WITHIN_S)
        by_device = any(isinstance(failure, DeviceError) for failure in self._failures[:1])
        self._state.enter("fault" if by_device else "stopping", time.monotonic())

    def _fail(self, error: EdgeRuntimeError) -> None:
        self._failures.append(error)
        self.stop()

    def _thread(
        self,
        stack: ExitStack,
        name: str,
        work: Callable[[], None],
        stop: Callable[[], None],
        within_s: float | None = None,
    ) -> None:
        """Run `work` in a thread that ends when the stack unwinds; an error of ours ends the run.

        One that does not end `within_s` is left, to end with the process.
        """

        def guarded() -> None:
            try:
                work()
            except EdgeRuntimeError as error:
                self._fail(error)
            except BaseException as error:  # a bug: the arm is stopped all the same, and main tells
                log.debug("thread %s", name, exc_info=True)
                failure = EdgeRuntimeError(f"internal error in thread {name}: {type(error).__name__}: {error}")
                failure.__cause__ = error
                self._fail(failure)

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        stack.callback(thread.join, within_s)
        stack.callback(stop)
        thread.start()

    def _heed(self, number: int) -> None:
        """The first signal stops the run, a second makes the arm limp at once; more change nothing."""
        again = self._signalled and number != signal.SIGHUP  # that comes from the shell and again from the kernel
        self._signalled = True
        if again:
            self._hurry.set()
        self.stop()  # first the arm, then the words
        name = signal.Signals(number).name
        policy = self._config.robot.stop_policy
        log.info(
            f"{name} again: limp at once" if again else f"{name}: the arm comes to rest ({policy}); again: at once"
        )

    # -- reporting --------------------------------------------------------------------------------------------------

    def _report(self, stats: RunStats) -> None:
        stats.error = str(self._failures[0]) if self._failures else None
        try:
            if self._config.summary is not None:
                summary.write(stats.report(), self._config.summary)
        finally:
            self._tell(stats)
