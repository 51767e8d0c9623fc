"""Each line of what the server is to reach: how it is measured, and what came out."""

from __future__ import annotations

import asyncio
import math
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc
import numpy as np

from edge_runtime.wire.messages import Chunk, Observation, Policy
from policy_server import bundle
from policy_server.bundle import STATE, Bundle
from policy_server.engines import Engine, open_engine
from policy_server.engines.providers import Runtime
from scripts.benches.server import fleet, throughput, variant
from scripts.benches.server.fleet import Seen
from scripts.benches.server.line import Effort, Line, ms
from scripts.benches.server.robot import Robot
from scripts.benches.server.server import Server

SMALL, SEEING = "act_so101_pick_place", "act_so101_cubes"
G = 0.5
ADDED = ("admit", "wait", "prepare", "finish")
BATCH = 8  # the server's max_batch
SHIFT = 5.0  # joint units between the bundle that is replaced and the one that replaces it


def load(name: str) -> Bundle:
    return bundle.load(bundle.locate(name))


def steady(server: Server, policy: Policy, robots: int, seconds: float) -> Seen:
    """Robots at their rate, each asking at g of a chunk."""
    return fleet.run(server.address, policy, robots, seconds, threshold=int(G * policy.chunk_size))


def small(effort: Effort, threads: int) -> Iterator[Line]:
    """A policy of 0.2 ms, of which hundreds could be carried: what is not the model shows."""
    with Server(SMALL, threads=threads) as server:
        yield from _small(server, load(SMALL).policy, effort)


def seeing(effort: Effort, threads: int) -> Iterator[Line]:
    """A policy with two cameras, 100 times as slow: the engine is what is short."""
    policy = load(SEEING).policy
    with Server(SEEING, threads=threads) as server:
        yield throughput.line(throughput.flood(server, load(SEEING), effort), policy)


def forwards(effort: Effort, threads: int) -> Iterator[Line]:
    """Between the two: the small policy made slower step by step."""
    yield from throughput.forwards(load(SMALL), effort, threads)


def most(effort: Effort, threads: int) -> Iterator[Line]:
    for name in (SMALL, SEEING):
        with Server(name, threads=threads) as server:
            yield _most(server, load(name).policy, effort)


def replace(effort: Effort, threads: int) -> Iterator[Line]:
    """A model is replaced three times while robots run it; each chunk is held against the bundle of its digest."""
    old = load(SMALL)
    with tempfile.TemporaryDirectory(prefix="serverbench-") as work:
        new = bundle.load(variant.write(old.path, Path(work) / "new", shift=SHIFT))
        with Server(old.path, threads=threads) as server:
            yield _replace(server, old, new, effort)


def soak(effort: Effort, threads: int) -> Iterator[Line]:
    """4 robots that ask as soon as they are answered; resident memory after a tenth of it, and at the end."""
    with Server(SMALL, threads=threads) as server:
        yield _soak(server, load(SMALL).policy, effort.observations)


PARTS = {"small": small, "seeing": seeing, "forwards": forwards, "most": most, "replace": replace, "soak": soak}


def _small(server: Server, policy: Policy, effort: Effort) -> Iterator[Line]:
    one: list[Seen] = []
    eight: list[Seen] = []
    for _ in range(effort.repeats):  # in turns: what else the machine does is then the same for both
        for seen, robots in ((one, 1), (eight, 8)):  # long: a robot asks once in a second or so
            seen.append(steady(server, policy, robots, 3 * effort.seconds))
    alone_s = statistics.median(seen.p95_s for seen in one)
    together_s = statistics.median(seen.p95_s for seen in eight)
    forward_s = statistics.median(seen.stage_p50_s("infer") for seen in one)
    most_s = 2 * alone_s + forward_s
    starved = sum(seen.starved for seen in eight)
    what = f"8 robots at {policy.fps:g} Hz, {policy.name}"
    yield Line(f"{what}: ticks after the first chunk", "0 starved", f"{starved} starved", starved == 0)
    yield Line(
        f"{what}: p95 of a round trip, median of {len(eight)}",
        "<= 2 x one robot's + a forward",
        f"{ms(together_s)}, at most {ms(most_s)} (2 x {ms(alone_s)} + {ms(forward_s)})",
        together_s <= most_s,
    )
    flood = throughput.flood(server, load(SMALL), effort)
    asking = flood.seen
    yield Line(
        "the same, each asking as soon as it is answered",
        "mean batch > 1; nobody below half of the mean",
        f"mean batch {asking.mean_batch:.1f}; least {asking.least_share:.2f} of the mean; {asking.rate:.0f}/s",
        asking.mean_batch > 1 and asking.least_share >= 0.5,
    )
    yield throughput.line(flood, policy)
    added_s = statistics.median(seen.stage_p50_s(*ADDED) for seen in one)
    yield Line("added to a chunk: " + ", ".join(ADDED), "p50 <= 1 ms", f"p50 {ms(added_s)}", added_s <= 1e-3)
    idle = asyncio.run(_idle(server, policy, effort.idle_s))
    yield Line("idle, 4 robots connected", "< 2 % of a core", f"{idle:.2%} of a core", idle < 0.02)


async def _idle(server: Server, policy: Policy, seconds: float) -> float:
    """Share of a core, with 4 robots that are welcomed and say nothing."""
    robots = [Robot(policy, number, threshold=0) for number in range(4)]
    channels = [grpc.aio.insecure_channel(server.address, fleet.OPTIONS) for _ in robots]
    calls = [await robot.connect(channel) for robot, channel in zip(robots, channels, strict=True)]
    await asyncio.sleep(0.5)
    before_s = server.cpu_s
    await asyncio.sleep(seconds)
    share = (server.cpu_s - before_s) / seconds
    for call in calls:
        call.cancel()
    for channel in channels:
        await channel.close()
    return share


def _most(server: Server, policy: Policy, effort: Effort) -> Line:
    """Doubled until ticks starve, then halved in between to within an eighth."""
    good, bad = 0, effort.most_robots + 1
    robots = 8
    while robots <= effort.most_robots and bad - good > max(good // 8, 1):
        if steady(server, policy, robots, effort.seconds).starved:
            bad = robots
        else:
            good = robots
        robots = min(2 * good, effort.most_robots) if bad > effort.most_robots else (good + bad) // 2
        if good == effort.most_robots:
            break
    found = f"{good}, and no more were tried" if good == effort.most_robots else f"{good}"
    forward_s = throughput.forward_s(load(policy.name), BATCH)
    return Line(
        f"most robots at {policy.fps:g} fps, g = {G:g}, {policy.name}",
        "0 starved",
        f"{found}; by the formula {carried(policy, forward_s)} on average, {sure(policy, forward_s)} however they ask "
        f"(forward of {BATCH}: {ms(forward_s)})",
    )


def carried(policy: Policy, forward_s: float) -> int:
    """How many robots the engine keeps up with: each takes a chunk every (1 - g) * n / f seconds (docs/sizing.md)."""
    return math.floor(BATCH / forward_s * (1 - G) * policy.chunk_size / policy.fps)


def sure(policy: Policy, forward_s: float) -> int:
    """How many are served in time even if all ask at once, behind a batch that has just begun."""
    return BATCH * max(math.floor(math.floor(G * policy.chunk_size) / policy.fps / forward_s) - 1, 0)


def _replace(server: Server, old: Bundle, new: Bundle, effort: Effort) -> Line:
    async def replace() -> None:
        await asyncio.sleep(1)
        for each in (new, old, new):
            command = ("-m", "policy_server", "models", "replace", str(each.path), f"--admin_socket={server.admin}")
            told = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.DEVNULL)
            if await told.wait():
                raise RuntimeError(f"models replace ended with {told.returncode}")
            await asyncio.sleep(effort.seconds / 2)

    threshold = int(G * old.policy.chunk_size)
    seen = fleet.run(server.address, old.policy, 4, effort.seconds, threshold=threshold, keep=True, meanwhile=replace)
    wrong, by_bundle = _mixed(seen, (old, new))
    replaced = min(record.replaced for record in seen.records)
    return Line(
        "replace a model under 4 robots, three times",
        "0 starved; no action from a mixed batch",
        f"{seen.starved} starved; {wrong} wrong of {by_bundle[0]} + {by_bundle[1]} chunks; each told {replaced} times",
        seen.starved == 0 and wrong == 0 and replaced == 3 and min(by_bundle) > 0,
    )


def _mixed(seen: Seen, bundles: Sequence[Bundle]) -> tuple[int, list[int]]:
    """How many chunks are not what the bundle of their digest says to their observation; and chunks of each bundle."""
    engines: dict[bytes, Engine] = {b.policy.digest: open_engine(b, Runtime("cpu", 1)) for b in bundles}
    counts: dict[bytes, int] = defaultdict(int)
    wrong = 0
    for record in seen.records:
        for chunk, observation in zip(record.chunks, record.asked, strict=True):
            counts[chunk.digest] += 1
            wrong += not _is_of(engines[chunk.digest], chunk, observation)
    return wrong, [counts[b.policy.digest] for b in bundles]


def _is_of(engine: Engine, chunk: Chunk, observation: Observation) -> bool:
    batch = {STATE: observation.state[None]} | {name: v[None] for name, v in observation.extra_state.items()}
    return bool(np.allclose(engine.infer(batch)[0], chunk.actions, atol=SHIFT / 100))


def _soak(server: Server, policy: Policy, observations: int) -> Line:
    began_s, done, warm_at, warm_mb = time.monotonic(), 0, 0, 0.0
    while done < observations or done == warm_at:  # something has to come after the warm-up
        done += fleet.run(server.address, policy, 4, 2.0, threshold=None).chunks
        if not warm_at and done >= observations // 10:
            warm_at, warm_mb = done, server.rss_mb
    grown_mb = server.rss_mb - warm_mb
    return Line(
        f"soak: {done} observations of 4 sessions, {time.monotonic() - began_s:.0f} s",
        "RSS grows by < 5 MB after warm-up",
        f"{grown_mb:+.1f} MB since {warm_at}, when it was {warm_mb:.0f} MB",
        grown_mb < 5,
    )
