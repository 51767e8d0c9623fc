"""Several robots, several policies, one server: each gets what is its own, whoever else is there."""

from __future__ import annotations

import json
import math
import shutil
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from edge_runtime.wire.messages import Chunk, Floats, Frame, Observation, Policy
from policy_server import bundle
from policy_server.admin import client as admin_client
from policy_server.bundle import IMAGES, STATE
from policy_server.engines import Engine, open_engine
from policy_server.engines.providers import Runtime
from scripts.rig.program import Arm, Edge, Server
from scripts.rig.robots import Robot, hello_to, refusal

THRESHOLD = 25  # rows


@dataclass
class Synthetic:
    """A robot that sees something else each time, and holds each chunk against what its policy says to just that."""

    policy: Policy
    engine: Engine
    seed: int
    cursor: int = 0
    plan_end: int = 0
    chunks: int = 0
    starved: int = 0  # ticks, after the first chunk

    def run(self, address: str, stop: threading.Event) -> None:
        """At the policy's rate, by absolute times, until `stop`."""
        random = np.random.default_rng(self.seed)
        with Robot(address, hello_to(self.policy, robot=f"synthetic {self.seed}"), timeout_s=600) as robot:
            robot.welcomed()
            next_s = time.monotonic()
            while not stop.wait(next_s - time.monotonic()):
                asks = self.plan_end - self.cursor <= THRESHOLD
                if asks:
                    observation = self._look(random)
                    chunk = robot.ask(observation)
                    self._check(chunk, observation)
                ticks = max(
                    math.ceil((time.monotonic() - next_s) * self.policy.fps), 1
                )  # this one, and while it waited
                self._execute(ticks)
                next_s += ticks / self.policy.fps
                if asks:
                    self.plan_end = max(self.plan_end, chunk.first_timestep + len(chunk.actions))
                    self.chunks += 1

    def _execute(self, ticks: int) -> None:
        executed = min(ticks, self.plan_end - self.cursor)
        self.cursor += executed
        self.starved += ticks - executed if self.chunks else 0

    def _look(self, random: np.random.Generator) -> Observation:
        policy, level = self.policy, self.plan_end - self.cursor
        return Observation(
            id=self.chunks + 1,
            session=self.seed,
            timestep=self.cursor,
            must_go=level == 0,
            state=random.uniform(-60, 60, len(policy.joints)).astype(np.float32),
            extra_state={v.name: random.uniform(-0.3, 0.3, v.dimension).astype(np.float32) for v in policy.extra_state},
            frames=tuple(
                Frame.raw(c.name, random.integers(0, 256, (c.height, c.width, 3), np.uint8)) for c in policy.cameras
            ),
            runs_dry_in_s=level / policy.fps,
        )

    def _check(self, chunk: Any, observation: Observation) -> None:
        """It answers this observation, and is what the policy says to it and to no other."""
        assert isinstance(chunk, Chunk)
        asked = (observation.id, observation.session, observation.timestep, self.policy.digest)
        assert (chunk.observation, chunk.session, chunk.first_timestep, chunk.digest) == asked
        np.testing.assert_allclose(chunk.actions, self._expected(observation), atol=0.05)

    def _expected(self, observation: Observation) -> Floats:
        batch = {STATE: observation.state[None]} | {n: v[None] for n, v in observation.extra_state.items()}
        pixels = {
            IMAGES + frame.camera: np.frombuffer(frame.data, np.uint8).reshape(1, frame.height, frame.width, 3)
            for frame in observation.frames
        }
        expected: Floats = self.engine.infer(batch | pixels)[0]
        return expected


@pytest.mark.parametrize("for_s", [8.0, pytest.param(60.0, marks=pytest.mark.long)])
def test_robots_with_two_policies_and_a_wrong_one_side_by_side(folder: Path, for_s: float) -> None:
    """An arm and a robot run the same policy, a third another one, and a fourth asks for one that it does not fit."""
    bundles = [bundle.load(bundle.locate(name)) for name in ("act_so101_pick_place", "act_so101_cubes")]
    place, cubes = (Synthetic(b.policy, open_engine(b, Runtime("cpu", 1)), seed) for seed, b in enumerate(bundles, 1))
    summary, stop = folder / "summary.json", threading.Event()
    refused: list[tuple[grpc.StatusCode, str]] = []

    def knock(address: str) -> None:
        """A robot without cameras that asks for the policy that sees, again and again."""
        while not stop.wait(0.5):
            refused.append(refusal(address, hello_to(place.policy, model=cubes.policy.name)))

    with (
        Arm(folder, "--cameras=[]") as arm,
        Server(folder, "act_so101_pick_place", "act_so101_cubes", "--max_batch=4", "--threads=1") as server,
        Edge(folder, *arm.flags, f"--server_address={server.address}", f"--summary={summary}") as edge,
        ThreadPoolExecutor(3) as pool,
    ):
        edge.wait_for("-> running")
        robots = [pool.submit(robot.run, server.address, stop) for robot in (place, cubes)]
        robots.append(pool.submit(knock, server.address))
        wait(robots, for_s, FIRST_EXCEPTION)
        stop.set()
        for robot in robots:
            robot.result(60)
        assert edge.end() == 0, edge.text
        assert server.end() == 0, server.text
    report = json.loads(summary.read_text())
    print(
        f"{for_s:g} s: chunks {report['chunks']['merged']}, {place.chunks}, {cubes.chunks}; refusals {len(refused)}; "
        f"starved {place.starved}, {cubes.starved}"
    )
    assert report["observations"]["failures"] == report["observations"]["lost"] == report["chunks"]["foreign"] == 0
    assert min(report["chunks"]["merged"], place.chunks, cubes.chunks, len(refused)) > for_s / 4
    assert {code for code, _ in refused} == {grpc.StatusCode.FAILED_PRECONDITION}
    assert "cameras: robot [], policy [static, wrist]" in refused[0][1]


def test_a_policy_is_replaced_while_the_arm_runs_it_and_after_a_reconnect_it_is_still_the_same(folder: Path) -> None:
    old = bundle.locate("act_so101_pick_place")
    new = shutil.copytree(old, folder / "new")
    manifest = json.loads((new / "manifest.json").read_text())
    (new / "manifest.json").write_text(json.dumps(manifest | {"provenance": {"checkpoint": "another"}}))
    digest = bundle.load(new).policy.digest.hex()[:12]
    summary, admin = folder / "summary.json", folder / "admin.sock"
    with Arm(folder, "--cameras=[]") as arm, Server(folder, str(old), f"--admin_socket={admin}") as server:
        address = server.address
        edge = Edge(folder, *arm.flags, f"--server_address={address}", f"--summary={summary}")
        with edge:
            edge.wait_for("-> running")
            assert admin_client.main(["replace", str(new), f"--admin_socket={admin}"]) == 0
            edge.wait_for(f"the server replaced act_so101_pick_place: now {digest}")
            server.wait_for("(sessions moved: 1, ended: 0)")
            assert server.end() == 0
            with Server(folder, str(new), listen=address):
                edge.wait_for("reconnected")
                assert edge.end() == 0, edge.text
    report = json.loads(summary.read_text())
    assert report["observations"]["failures"] == 0
