"""How near the server comes to what its engine does alone, and what else takes the processor."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edge_runtime.wire.messages import Policy
from policy_server.bundle import Bundle, features, load
from policy_server.engines import open_engine
from policy_server.engines.providers import Runtime
from scripts.benches.server import echo, fleet, variant
from scripts.benches.server.fleet import Seen
from scripts.benches.server.line import Effort, Line, ms
from scripts.benches.server.server import Server

ROBOTS = 8
REACH = 0.9  # of the engine
LAYERS = (0, 2, 4, 8, 16, 32)  # added to the small policy: forwards between its own and some milliseconds
SENT, ANSWERED = 96, 1284  # bytes of an observation and of a chunk of the small policy


@dataclass(frozen=True)
class Flood:
    """What robots saw that asked all the time; processor time for a chunk in seconds."""

    seen: Seen
    server_s: float
    engine_s: float  # of that, the thread that runs the engine
    undisturbed: float  # chunks/s of the engine with nothing else to do, at that batch size

    @property
    def robot_s(self) -> float:
        return self.seen.cpu_s / self.seen.chunks

    @property
    def ratio(self) -> float:
        """Of the engine's rate while it was at work."""
        return self.seen.rate / self.seen.engine_rate

    @property
    def processor(self) -> str:
        return (
            f"processor for a chunk: server {ms(self.server_s)} (the engine's thread {ms(self.engine_s)}), "
            f"robot {ms(self.robot_s)}"
        )

    def __str__(self) -> str:
        seen = self.seen
        return (
            f"{seen.rate:.0f}/s = {self.ratio:.2f} x {seen.engine_rate:.0f}/s at {seen.mean_batch:.1f} "
            f"({seen.rate / self.undisturbed:.2f} x {self.undisturbed:.0f}/s, the engine with nothing beside it)"
        )


def forward_s(loaded: Bundle, size: int) -> float:
    """Of a batch of `size`, in this process, with nothing else to do."""
    engine = open_engine(loaded, Runtime("cpu", 1))
    batch = {name: np.zeros((size, *f.shape), f.dtype) for name, f in features(loaded.policy).items()}
    times = []
    for _ in range(12):
        began_s = time.perf_counter()
        engine.infer(batch)
        times.append(time.perf_counter() - began_s)
    return statistics.median(times)


def flood(server: Server, loaded: Bundle, effort: Effort) -> Flood:
    """The median of several, by ratio."""
    found = [_flood(server, loaded, effort) for _ in range(effort.repeats)]
    return sorted(found, key=lambda each: each.ratio)[len(found) // 2]


def _flood(server: Server, loaded: Bundle, effort: Effort) -> Flood:
    before_s, threads_s = server.cpu_s, server.threads_s
    seen = fleet.run(server.address, loaded.policy, ROBOTS, effort.seconds, threshold=None)
    engine_s = max(after_s - threads_s.get(thread, 0.0) for thread, after_s in server.threads_s.items())
    server_s = server.cpu_s - before_s
    size = round(seen.mean_batch)
    return Flood(seen, server_s / seen.chunks, engine_s / seen.chunks, size / forward_s(loaded, size))


def line(found: Flood, policy: Policy) -> Line:
    cores = len(os.sched_getaffinity(0))
    most = cores / (found.server_s + found.robot_s)
    return Line(
        f"throughput at {ROBOTS} sessions, {policy.name}",
        f">= {REACH:g} x the engine at that batch size",
        f"{found}; {found.processor}, so {cores} cores carry {most:.0f}/s",
        found.ratio >= REACH,
    )


def forwards(bundle: Bundle, effort: Effort, threads: int) -> Iterator[Line]:
    """The same with layers that do nothing but take time: from which forward on the engine is what is short."""
    cost = echo.measure(ROBOTS, effort.seconds, SENT, ANSWERED)
    yield Line(
        "gRPC alone, the same streams and sizes",
        "no policy",
        f"{cost.rate:.0f}/s; processor for a pair: server {ms(cost.server_s)}, robot {ms(cost.robot_s)}",
    )
    enough: list[float] = []
    for layers in LAYERS:
        with tempfile.TemporaryDirectory(prefix="serverbench-") as work:
            slower = variant.write(bundle.path, Path(work) / "slower", layers=layers)
            with Server(slower, threads=threads) as server:
                found = flood(server, load(slower), effort)
        each_s = 1 / found.seen.engine_rate
        enough = [*enough, each_s] if found.ratio >= REACH else []
        yield Line(
            f"forward of {ms(each_s)} for each of a batch",
            "how near to the engine",
            f"{found}; {found.processor}",
        )
    yield Line(
        f"the forward from which on the server gives {REACH:g} of the engine",
        "for each of a batch",
        ms(enough[0]) if enough else "none of these",
    )
