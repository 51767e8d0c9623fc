"""Seeded faults, one after another, on a running arm: does it come back in time, and does it keep every promise?

python -m scripts.soak --faults=60 --seed=0
python -m scripts.soak --steps=true    each bus transaction of a start, a run and a stop fails once, in many ways
"""

from __future__ import annotations

import logging
import random
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from edge_runtime.acting.supervisor.client import watch_over
from edge_runtime.config import StartConfig
from edge_runtime.errors import ConfigError
from edge_runtime.program import flags
from scripts.rig.bench import start
from scripts.rig.soaking.faults import FAULTS, Fault
from scripts.rig.soaking.judge import BusJudge, Watch
from scripts.rig.soaking.stage import Stage
from scripts.rig.steps.sweep import sweep

if TYPE_CHECKING:
    from edge_runtime.reporting.run_stats import RunStats
    from edge_runtime.runtime import Runtime

SHORTEST_S, LONGEST_S = 0.1, 2.0
STEADY_S = 1.0  # at work for so long: the next fault may come
GIVE_UP_S = 20.0
JUDGE_EVERY_S = 4.0  # the bus remembers eight seconds, and telling them takes its time from the servos


@dataclass
class SoakConfig:
    """Faults on the virtual arm, drawn from the matrix; exit 1 when a promise is broken."""

    faults: int = 60
    minutes: float = 10.0  # no fault begins later
    seed: int = 0
    only: str = ""  # faults whose name contains it
    output: Path = Path("soak.log")  # the runtime's log
    debug: bool = False
    steps: bool = False  # instead: a failure at every bus transaction of starts, runs and stops
    quick: bool = False  # with `steps`: one kind of failure at each transaction

    def __post_init__(self) -> None:
        if not any(self.only in fault.name for fault in FAULTS):
            raise ConfigError(f"only: no fault is called {self.only!r}; there are {', '.join(f.name for f in FAULTS)}")


@dataclass
class Tally:
    """How one kind of fault went."""

    fault: Fault
    recoveries_s: list[float] = field(default_factory=list)
    too_late: int = 0


def main(config: SoakConfig) -> int:
    if config.steps:
        return every_step(config.quick)
    logging.basicConfig(
        filename=config.output, filemode="w", level=logging.INFO, format="%(asctime)s %(name)s: %(message)s"
    )
    with tempfile.TemporaryDirectory(prefix="soak-") as folder, Stage(Path(folder), config.seed) as stage:
        settings = flags.parse(StartConfig, stage.flags, prog="edge-runtime start")
        with watch_over(settings) as supervisor:
            from edge_runtime.runtime import Runtime  # grpc: not before the supervisor

            watch = Watch()
            runtime = Runtime(settings, supervisor, listeners=[watch], tell=lambda stats: None)
            torment = Torment(config, stage, watch, BusJudge(settings.robot.max_speed, settings.fps))
            run_beside(torment, runtime)
    return torment.verdict()


def every_step(quick: bool) -> int:
    """Print every violation and the count; 1 if there is one."""
    lived = violations = 0
    for found in sweep(0 if quick else 1):
        lived, violations = lived + 1, violations + len(found)
        for said in found:
            print(f"VIOLATION: {said}", flush=True)
    print(f"steps: {lived} combinations, {violations} violations")
    return 1 if violations else 0


def run_beside(torment: Torment, runtime: Runtime) -> None:
    """Run until `torment` is done; what ends it early is raised here."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(torment.run)
        done.add_done_callback(lambda _: runtime.stop())
        runtime.run()
        done.result()


class Torment:
    """Draws the faults, waits for the arm after each, and keeps the books."""

    def __init__(self, config: SoakConfig, stage: Stage, watch: Watch, judge: BusJudge) -> None:
        self._config, self._stage, self._watch, self._judge = config, stage, watch, judge
        self._dice = random.Random(config.seed)
        self._kinds = [fault for fault in FAULTS if config.only in fault.name]
        self._tallies = {fault.name: Tally(fault) for fault in self._kinds}
        self._until_s = time.monotonic() + 60 * config.minutes
        self._broken: list[str] = []
        self._judged_s = time.monotonic()

    def run(self) -> None:
        """Until all faults are through, the time is up, or the arm does not come back."""
        if not self._watch.begun.wait(60):
            self._broken.append("the arm never began to work")
            return
        order: list[Fault] = []
        for number in range(self._config.faults):
            if time.monotonic() > self._until_s:
                return
            order = order or self._dice.sample(self._kinds, len(self._kinds))  # each kind before any comes again
            fault, lasts_s = order.pop(), self._dice.uniform(SHORTEST_S, LONGEST_S)
            if not self._suffer(fault, lasts_s):
                self._broken.append(f"{fault.name}: the arm did not come back within {GIVE_UP_S:g} s")
                return
            print(f"\r{number + 1} of {self._config.faults} faults  {fault.name:<40}", end="", flush=True)

    def _suffer(self, fault: Fault, lasts_s: float) -> bool:
        logging.info("soak: %s for %.2f s", fault.name, lasts_s)
        fault.begin(self._stage, self._dice)
        _rest(lasts_s)
        fault.end(self._stage)
        ended_s = time.monotonic()
        logging.info("soak: %s is over", fault.name)
        assert self._watch.stats is not None  # it has begun
        one_inference_s = self._watch.stats.planner.latency.quantile()
        recovered = self._wait(ended_s, fault.limit_s + one_inference_s)
        self._judge_bus()
        if recovered is None:
            return False
        tally = self._tallies[fault.name]
        tally.recoveries_s.append(recovered)
        tally.too_late += recovered > fault.limit_s + one_inference_s
        return True

    def _wait(self, ended_s: float, limit_s: float) -> float | None:
        """Until the arm has been at work for STEADY_S, and longer than it may take to notice; how long that took."""
        while time.monotonic() < ended_s + GIVE_UP_S:
            idle_until_s = self._watch.idle_until_s()
            if time.monotonic() - max(idle_until_s, ended_s + limit_s) > STEADY_S:
                return max(idle_until_s - ended_s, 0.0)
            if time.monotonic() - self._judged_s > JUDGE_EVERY_S:
                self._judge_bus()
            _rest(0.05)
        return None

    def _judge_bus(self) -> None:
        self._judged_s = time.monotonic()
        self._judge.judge(self._stage.arm.get("/log"))

    def verdict(self) -> int:
        """The table, and 1 when a promise was broken."""
        print(f"\r{'fault':<30}{'n':>4}{'recovery p50':>15}{'max':>9}{'limit':>22}")
        for name, tally in self._tallies.items():
            times = sorted(tally.recoveries_s)
            if times:
                limit = f"inference + {tally.fault.limit_s:g} s"
                print(f"{name:<30}{len(times):>4}{times[len(times) // 2]:>13.2f} s{times[-1]:>7.2f} s{limit:>22}")
            if tally.too_late:
                self._broken.append(f"{name}: {tally.too_late} of {len(times)} recoveries took too long")
        if (stats := self._watch.stats) is not None:
            self._check(stats)
        if not self._judge.judged:
            self._broken.append("no goal on the bus was judged")
        for line in self._broken:
            print(f"BROKEN: {line}")
        print("every promise kept" if not self._broken else f"{len(self._broken)} broken")
        return 1 if self._broken else 0

    def _check(self, stats: RunStats) -> None:
        report, oldest_s = stats.report(), stats.loop.action_age().summary().max
        loop, late = report["loop"], report["lateness_s"]
        ours = sum(loop["missed_by_stage"][stage] for stage in ("pick", "guard", "other")) - loop["host_stalls"]
        limit_s = stats.config.max_action_age_s or stats.hello.actions_per_chunk / stats.config.fps + 1
        print(
            f"{report['duration_s']:.0f} s, {loop['ticks']} ticks, {len(report['faults'])} faults of the arm survived; "
            f"missed ticks: {ours} of our own making, {loop['missed_by_stage']['bus']} on the bus, "
            f"{loop['host_stalls']} while the host ran others"
        )
        print(
            f"lateness p50 {late['p50'] * 1e3:.3f} ms, p99 {late['p99'] * 1e3:.3f} ms, max {late['max'] * 1e3:.3f} ms; "
            f"{report['realtime']}"
        )
        print(f"oldest action {oldest_s:.2f} s of {limit_s:.2f}; {loop['too_old']} refused as older")
        print(f"{self._judge.judged} goals on the bus judged, {len(self._judge.violations)} beyond range or speed")
        self._broken += [f"limit: {violation}" for violation in self._judge.violations[:5]]
        if ours:
            self._broken.append(f"{ours} missed ticks of our own making")
        if oldest_s > limit_s:
            self._broken.append(f"an action was executed {oldest_s:.2f} s after its observation")


def _rest(seconds: float) -> None:
    threading.Event().wait(seconds)


if __name__ == "__main__":
    start(SoakConfig, main)
