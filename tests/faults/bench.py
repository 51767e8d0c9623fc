"""The bench of the fault matrix: virtual bus and scripted server here, a proxy, and the runtime as a process."""

from __future__ import annotations

import math
import queue
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from edge_runtime.motors.calibration import JOINTS
from edge_runtime.virtual_arm.bus import VirtualBus
from edge_runtime.virtual_arm.calibration import write_calibration
from edge_runtime.virtual_arm.frame_log import Entry, FrameLog
from edge_runtime.wire.messages import Chunk, Joint, Observation, Policy
from scripts.rig.program import Edge, as_hardware
from scripts.rig.proxy import Proxy
from tests.edge_runtime.link.scripted_server import POLICY, ScriptedServer

FPS = 30
ROWS = 30
IDS = set(range(1, 7))
STEP = 300 / FPS + 0.1  # units from one goal to the next: max_speed, and the rounding to ticks

TICKS_PER_UNIT = dict.fromkeys(range(1, 6), 4095 / 360) | {6: (3186 - 1934) / 100}
SO101 = tuple(Joint(f"{name}.pos", "percent" if name == "gripper" else "degrees") for name in JOINTS)


def policy(cameras: tuple[Any, ...] = ()) -> Policy:
    return replace(POLICY, joints=SO101, cameras=cameras, chunk_size=ROWS)


def swing(observation: Observation, rows: int = ROWS) -> Chunk:
    """All joints swing by 10 units, the gripper around its middle; a wave that depends on the timestep alone."""
    seconds = (observation.timestep + np.arange(rows)) / FPS
    actions = np.tile(10 * np.sin(2 * math.pi * seconds / 4)[:, None], (1, 6)).astype(np.float32)
    actions[:, 5] += 50
    return Chunk(observation.id, observation.session, observation.timestep, actions, POLICY.digest)


class GoalLog(FrameLog):
    """Hands out goals as they are written: who waits for them must not keep the bus's thread from its work."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.goals: queue.SimpleQueue[float] = queue.SimpleQueue()

    def add(self, entry: Entry) -> None:
        super().add(entry)
        if entry.request is None and entry.instruction == "SYNC_WRITE" and "Goal_Position" in entry.registers:
            self.goals.put(entry.time_s)


@dataclass
class ArmBench:
    """One arm, and the address of its policy server, for one runtime at a time."""

    folder: Path
    bus: VirtualBus
    log: GoalLog
    address: str

    @contextmanager
    def running(self, *flags: str) -> Iterator[Edge]:
        """`edge-runtime start`, once the arm moves."""
        with self.start(*flags) as edge:
            edge.wait_for("-> running")
            yield edge

    def start(self, *flags: str) -> Edge:
        return Edge(self.folder, *self.flags, *flags)

    @property
    def flags(self) -> list[str]:
        """What tells `edge-runtime start` about this arm and its server."""
        return [
            *("--robot.type=so101_follower", f"--robot.port={self.folder}/arm", "--robot.id=virtual"),
            *(f"--robot.calibration_dir={self.folder}", f"--server_address={self.address}"),
            *(f"--fault_folder={self.folder}/faults", f"--summary={self.folder}/summary.json"),
            "--chunk_size_threshold=0.5",
            "--robot.bus_timeout_ms=100",  # the virtual servos share the machine with whatever else it does
        ]

    @contextmanager
    def fault(self, *orders: dict[str, Any]) -> Iterator[None]:
        """Something is wrong with the bus for a while."""
        for order in orders:
            self.bus.inject(order)
        try:
            yield
        finally:
            self.bus.inject({"fault": "clear"})

    def wait_for_goals(self, count: int) -> None:
        """Until the loop has written so many more."""
        while not self.log.goals.empty():
            self.log.goals.get()
        for _ in range(count):
            self.log.goals.get(timeout=20)

    def goals(self, since_s: float = 0.0) -> list[dict[int, int]]:
        """Every write of goals since then, as id -> ticks."""
        return [
            {servo: value["Goal_Position"] for servo, value in entry.values.items()}
            for entry in self.bus.log.writes("Goal_Position")
            if entry.time_s >= since_s
        ]

    @property
    def torque(self) -> list[int]:
        return self.bus.values("Torque_Enable")

    def assert_safe_start(self, since_s: float) -> None:
        """Since then: present position read, made the goal, torque on; and from there on steps that are allowed.

        Servos whose torque never went off get no order to put it on: a start ends with their Lock.
        """
        entries = [entry for entry in self.bus.log if entry.time_s >= since_s]
        on = last(entries, lambda entry: writes(entry, "Lock", 1))
        present: dict[int, int] = {}
        start: dict[int, int] = {}
        read: dict[int, int] = {}  # when that was written; an arm that sinks is elsewhere a moment later
        for entry in entries[:on]:
            if entry.request is not None and "Present_Position" in entry.registers:
                present |= {servo: values["Present_Position"] for servo, values in entry.values.items()}
            elif writes(entry, "Goal_Position"):
                start |= {servo: values["Goal_Position"] for servo, values in entry.values.items()}
                read |= {servo: present[servo] for servo in entry.values}
        assert start == read
        assert all(abs(start[servo] - present[servo]) <= 12 for servo in start)  # 1 degree
        way = [start, *(goals for goals in self.goals(entries[on].time_s))]
        assert len(way) > 1
        for earlier, later in pairwise(way):
            assert all(abs(later[servo] - earlier[servo]) <= STEP * TICKS_PER_UNIT[servo] for servo in later)


@dataclass
class Bench(ArmBench):
    """And that server, with the link to it."""

    server: ScriptedServer
    proxy: Proxy


def writes(entry: Entry, register: str, value: int | None = None) -> bool:
    """Whether the entry is an instruction that writes `register`."""
    if entry.request is not None or "WRITE" not in entry.instruction or register not in entry.registers:
        return False
    return value is None or any(values.get(register) == value for values in entry.values.values())


def last(entries: list[Entry], wanted: Callable[[Entry], bool]) -> int:
    return max(index for index, entry in enumerate(entries) if wanted(entry))


@contextmanager
def arm(folder: Path) -> Iterator[tuple[VirtualBus, GoalLog]]:
    """A virtual arm at `folder`/arm with its calibration beside it."""
    write_calibration(folder, "virtual")
    bus = VirtualBus(link=folder / "arm", seed=7)
    bus.log = log = GoalLog(10_000)
    with ExitStack() as stack:
        with as_hardware():
            stack.enter_context(bus)
        yield bus, log


@contextmanager
def bench(folder: Path, **of_server: Any) -> Iterator[Bench]:
    server = ScriptedServer(**({"answer": swing, "policy": policy()} | of_server))
    try:
        with arm(folder) as (bus, log), Proxy(server.address, seed=7) as proxy:
            yield Bench(folder, bus, log, proxy.address, server, proxy)
    finally:
        server.kill()
