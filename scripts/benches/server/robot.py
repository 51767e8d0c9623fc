"""A robot that is all clock and no arm: a plan of rows that runs dry at a fixed rate, one observation in flight.

Its ticks are not waited for one by one: between two messages it is known what each of them did. So one thread carries
hundreds of robots, and what is measured is the server.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import grpc
import numpy as np

from edge_runtime.wire import codec
from edge_runtime.wire import policy_pb2 as pb
from edge_runtime.wire.messages import (
    Chunk,
    Frame,
    Hello,
    Observation,
    Policy,
    Replaced,
    ServerTimes,
)

ACT = "/edge_runtime.policy.v1.PolicyService/Act"
PREPARED = 8  # observations of a robot that asks all the time; they take turns


@dataclass
class Record:
    """What one robot saw. Round trips in seconds, from before its observation was encoded to after its chunk was."""

    starved: int = 0  # ticks, after the first chunk
    replaced: int = 0
    round_trips_s: list[float] = field(default_factory=list)
    times: list[ServerTimes] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    asked: list[Observation] = field(default_factory=list)


class Robot:
    """Runs `policy` at its rate and asks when at most `threshold` rows are left.

    None: it asks as soon as it is answered, each time from another timestep, and no tick is looked at. What it says is
    prepared before and what it hears is read afterwards, so that it takes as little as can be from the server, with
    which it shares the processor.
    """

    def __init__(self, policy: Policy, number: int, *, threshold: int | None, keep: bool = False) -> None:
        self.record = Record()
        self._policy = policy
        self._number = number
        self._threshold = threshold
        self._keep = keep  # every chunk and what it answers, to look at later
        self._looks = _looks(policy, number)
        self._cursor = self._plan_end = self._id = 0
        self._next_tick_s = 0.0

    async def run(self, channel: grpc.aio.Channel, until: asyncio.Event) -> None:
        """One stream, until `until`. Raises grpc.RpcError when the server ends it."""
        call = await self.connect(channel)
        try:
            await (self._flood(call, until) if self._threshold is None else self._live(call, until, self._threshold))
        finally:
            call.cancel()

    async def _flood(self, call: grpc.aio.StreamStreamCall, until: asyncio.Event) -> None:
        looks = [replace(self._look(), must_go=False, runs_dry_in_s=1.0) for _ in range(PREPARED)]
        prepared = [(look, codec.encode_observation(look)) for look in looks]
        heard: list[tuple[Observation, float, float, bytes]] = []
        for number, (look, messages) in enumerate(itertools.cycle(prepared), 1):
            if until.is_set():
                break
            asked_s = time.monotonic()
            for message in messages:
                if message.HasField("observation"):
                    message.observation.id = message.observation.timestep = number
                else:
                    message.piece.observation = number
                await call.write(message.SerializeToString())
            data = await call.read()
            while data[0] >> 3 != pb.ServerMessage.CHUNK_FIELD_NUMBER:  # how often it is served, for example
                data = await call.read()
            heard.append((look, asked_s, time.monotonic(), data))
        for number, (look, asked_s, heard_s, data) in enumerate(heard, 1):
            chunk = codec.decode_chunk(pb.ServerMessage.FromString(data), self._policy)
            self._note(chunk, replace(look, id=number, timestep=number), heard_s - asked_s)

    async def _live(self, call: grpc.aio.StreamStreamCall, until: asyncio.Event, threshold: int) -> None:
        over = asyncio.ensure_future(until.wait())
        await asyncio.sleep(random.random() * threshold / self._policy.fps)  # no two start together
        self._next_tick_s = time.monotonic()
        try:
            while not over.done():
                await asyncio.wait([over], timeout=self._until_asking_s(threshold))
                if over.done():
                    break
                asked_s = time.monotonic()
                self._advance(asked_s)
                observation = self._look()
                for message in codec.encode_observation(observation):
                    await call.write(message.SerializeToString())
                chunk = await self._answer(call)
                now_s = time.monotonic()
                self._advance(now_s)
                self._plan_end = max(self._plan_end, chunk.first_timestep + len(chunk.actions))
                self._note(chunk, observation, now_s - asked_s)
        finally:
            over.cancel()

    async def connect(self, channel: grpc.aio.Channel) -> grpc.aio.StreamStreamCall:
        """A stream that is welcomed."""
        call = channel.stream_stream(ACT)()
        await call.write(codec.encode_hello(self._hello()).SerializeToString())
        codec.decode_welcome(pb.ServerMessage.FromString(await call.read()))
        return call

    async def _answer(self, call: grpc.aio.StreamStreamCall) -> Chunk:
        while True:
            message = codec.decode_server_message(pb.ServerMessage.FromString(await call.read()), self._policy)
            if isinstance(message, Chunk):
                return message
            self.record.replaced += isinstance(message, Replaced)

    def _note(self, chunk: Chunk, observation: Observation, round_trip_s: float) -> None:
        if (chunk.observation, chunk.first_timestep) != (observation.id, observation.timestep):
            raise RuntimeError(f"robot {self._number} got the chunk of another observation: {chunk.observation}")
        self.record.round_trips_s.append(round_trip_s)
        self.record.times.append(chunk.times)
        self.record.batches.append(chunk.batch)
        if self._keep:
            self.record.chunks.append(chunk)
            self.record.asked.append(observation)

    def _advance(self, now_s: float) -> None:
        """Execute, or starve at, all ticks that have come."""
        ticks = max(math.ceil((now_s - self._next_tick_s) * self._policy.fps), 0)
        self._next_tick_s += ticks / self._policy.fps
        executed = min(ticks, self._plan_end - self._cursor)
        self._cursor += executed
        self.record.starved += ticks - executed if self.record.round_trips_s else 0

    def _until_asking_s(self, threshold: int) -> float:
        """From now to the tick at which the plan is down to the threshold."""
        ticks = self._plan_end - self._cursor - threshold
        return max(self._next_tick_s + ticks / self._policy.fps - time.monotonic(), 0.0) if ticks > 0 else 0.0

    def _look(self) -> Observation:
        self._id += 1
        state, extra, frames = next(self._looks)
        level = self._plan_end - self._cursor
        return Observation(
            id=self._id,
            session=1,
            timestep=self._cursor,
            must_go=level == 0,
            state=state,
            extra_state=extra,
            frames=frames,
            runs_dry_in_s=level / self._policy.fps,
        )

    def _hello(self) -> Hello:
        policy = self._policy
        return Hello(
            policy.joints, policy.cameras, policy.extra_state, policy.fps, policy.name, robot=f"robot {self._number}"
        )


def _looks(policy: Policy, seed: int) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray], tuple[Frame, ...]]]:
    """State, vectors and frames, never twice the same; the pictures take turns, being dear to make."""
    draw = np.random.default_rng(seed)
    pictures = [
        tuple(Frame.raw(c.name, draw.integers(0, 256, (c.height, c.width, 3), np.uint8)) for c in policy.cameras)
        for _ in range(4)
    ]
    while True:
        for frames in pictures:
            state = draw.uniform(-60, 60, len(policy.joints)).astype(np.float32)
            extra = {v.name: draw.uniform(-0.3, 0.3, v.dimension).astype(np.float32) for v in policy.extra_state}
            yield state, extra, frames
