"""Many robots at once, from one process, for a while; and what they saw together."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np

from edge_runtime.wire.messages import Policy
from scripts.benches.server.robot import Record, Robot

OPTIONS = (("grpc.use_local_subchannel_pool", 1),)  # a connection for each robot


@dataclass(frozen=True)
class Seen:
    """By all robots; times in seconds."""

    records: Sequence[Record]
    for_s: float
    cpu_s: float  # that all robots took together meanwhile

    @property
    def starved(self) -> int:
        return sum(record.starved for record in self.records)

    @property
    def chunks(self) -> int:
        return sum(len(record.round_trips_s) for record in self.records)

    @property
    def rate(self) -> float:
        """Chunks per second."""
        return self.chunks / self.for_s

    @property
    def p95_s(self) -> float:
        """Of the round trips, each robot's first left out."""
        return float(np.percentile([s for record in self.records for s in record.round_trips_s[1:]], 95))

    @property
    def mean_batch(self) -> float:
        """Observations in an inference."""
        return self.chunks / sum(1 / batch for record in self.records for batch in record.batches)

    @property
    def engine_rate(self) -> float:
        """Chunks per second of the engine while it was at work."""
        pairs = (pair for record in self.records for pair in zip(record.times, record.batches, strict=True))
        return self.chunks / sum(times.infer / batch for times, batch in pairs)

    @property
    def least_share(self) -> float:
        """What the robot that got least got, of the mean."""
        return min(len(record.round_trips_s) for record in self.records) * len(self.records) / self.chunks

    def stage_p50_s(self, *stages: str) -> float:
        """The median over chunks of what they spent in `stages` together."""
        times = (times for record in self.records for times in record.times)
        return statistics.median(sum(float(getattr(each, stage)) for stage in stages) for each in times)


def run(
    address: str,
    policy: Policy,
    robots: int,
    for_s: float,
    *,
    threshold: int | None,
    keep: bool = False,
    meanwhile: Callable[[], Awaitable[None]] | None = None,
) -> Seen:
    """`robots` robots on the server at `address`; `meanwhile` runs beside them, and they go on until it is done."""
    return asyncio.run(_run(address, policy, robots, for_s, threshold, keep, meanwhile))


async def _run(
    address: str,
    policy: Policy,
    robots: int,
    for_s: float,
    threshold: int | None,
    keep: bool,
    meanwhile: Callable[[], Awaitable[None]] | None,
) -> Seen:
    fleet = [Robot(policy, number, threshold=threshold, keep=keep) for number in range(robots)]
    channels = [grpc.aio.insecure_channel(address, OPTIONS) for _ in fleet]
    until = asyncio.Event()
    before_s = time.process_time()
    tasks = [asyncio.create_task(robot.run(channel, until)) for robot, channel in zip(fleet, channels, strict=True)]
    ends: list[asyncio.Future[None]] = [asyncio.create_task(asyncio.sleep(for_s))]
    if meanwhile is not None:
        ends.append(asyncio.ensure_future(meanwhile()))
    first: list[asyncio.Future[Any]] = [asyncio.gather(*ends), *tasks]
    await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
    until.set()
    cpu_s = time.process_time() - before_s
    try:
        await asyncio.gather(*tasks, *ends)
    finally:
        await asyncio.gather(*(channel.close() for channel in channels))
    return Seen([robot.record for robot in fleet], for_s, cpu_s)
