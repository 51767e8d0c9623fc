"""The main job over the real path: pty, HTTP, gRPC and three processes."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

import policy_server
from edge_runtime.wire.messages import Answer, Chunk, Failure, Joint, Observation
from scripts.rig.program import Arm, Edge, Server
from tests.edge_runtime.link.scripted_server import POLICY, ScriptedServer

SO101 = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")


def test_the_arm_picks_and_places(arm: Arm, server: Server, folder: Path) -> None:
    summary = folder / "summary.json"
    with Edge(
        folder,
        *arm.flags,
        f"--server_address={server.address}",
        f"--summary={summary}",
        *("--episodes=2", f"--reset_url={arm.ready['http']}/episode"),
    ) as edge:
        assert edge.wait() == 0, edge.text
    report = json.loads(summary.read_text())
    assert [episode["seed"] for episode in report["episodes"]] == [0, 1]
    assert any(episode["success"] for episode in report["episodes"])
    assert report["chunks"]["merged"] >= 4
    assert report["observations"]["failures"] == 0
    assert arm.torque() == {0}


def test_a_config_file_runs_until_sigterm_and_again(arm: Arm, server: Server, folder: Path) -> None:
    config = folder / "so101.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "robot": {
                    "type": "so101_follower",
                    "port": arm.ready["port"],
                    "id": arm.ready["robot_id"],
                    "calibration_dir": arm.ready["calibration_dir"],
                    "bus_timeout_ms": 100,
                },
                "server_address": server.address,
                "extra_state": {"environment_state": arm.ready["http"] + "/state"},
            }
        )
    )
    for stop_policy, torque in (("hold", {1}), ("limp", {0})):
        with Edge(folder, f"--config_path={config}", f"--robot.stop_policy={stop_policy}") as edge:
            edge.wait_for("-> running")
            assert edge.end() == 0, edge.text
        assert arm.torque() == torque
        goals = arm.written("Goal_Position")
        assert len({tuple(goal.values()) for goal in goals}) > 1, "the arm never moved"


def test_a_killed_server_is_found_again_and_the_arm_goes_on(arm: Arm, folder: Path) -> None:
    summary = folder / "summary.json"
    with Server(folder, "act_so101_pick_place") as server:
        edge = Edge(folder, *arm.flags, f"--server_address={server.address}", f"--summary={summary}")
        with edge:
            edge.wait_for("-> running")
            server.end(signal.SIGKILL)
            edge.wait_for("-> draining")
            edge.wait_for("-> holding")
            with Server(folder, "act_so101_pick_place", listen=server.address):
                edge.wait_for("reconnected")
                edge.wait_for("-> running")
                assert edge.end() == 0, edge.text
    report = json.loads(summary.read_text())
    assert report["reconnects"] == 1
    states = [state for _, state in report["states"]]
    assert states[-5:] == ["running", "draining", "holding", "running", "stopping"], states


def test_one_inference_that_raises_with_an_empty_ring_starts_the_arm_all_the_same(arm: Arm, folder: Path) -> None:
    failed: list[int] = []

    def answer(observation: Observation) -> Answer:
        if not failed:
            failed.append(observation.id)
            return Failure(observation.id, 13, "the first one fails", "0001")
        actions = np.tile(observation.state + 1, (10, 1)).astype(np.float32)
        return Chunk(observation.id, observation.session, observation.timestep, actions, POLICY.digest)

    joints = tuple(Joint(f"{name}.pos", "percent" if name == "gripper" else "degrees") for name in SO101)
    server = ScriptedServer(answer=answer, policy=replace(POLICY, joints=joints))
    try:
        with Edge(folder, *arm.flags, f"--server_address={server.address}") as edge:
            edge.wait_for("the first one fails (id 0001)")
            edge.wait_for("-> running")
            assert edge.end() == 0, edge.text
    finally:
        server.kill()


def test_one_machine_starts_its_own_server(arm: Arm, folder: Path) -> None:
    bundle = Path(policy_server.__file__).parent / "bundles" / "act_so101_pick_place"
    with Edge(folder, *arm.flags, f"--bundle={bundle}") as edge:
        edge.wait_for("-> running")
        assert edge.end() == 0, edge.text


def test_sequential_asks_only_when_the_queue_is_empty(arm: Arm, server: Server, folder: Path) -> None:
    summary = folder / "summary.json"
    with Edge(
        folder,
        *arm.flags,
        *(f"--server_address={server.address}", f"--summary={summary}", "--mode=sequential"),
        *("--chunk_size_threshold=0.8", "--duration_s=2.5"),
    ) as edge:
        assert edge.wait() == 0, edge.text
    report = json.loads(summary.read_text())
    assert report["observations"]["must_go"] == report["observations"]["sent"] >= 2
    assert report["loop"]["executed"] <= 10 * report["chunks"]["merged"]  # floor((1 - 0.8) * 50) of each chunk


def test_a_dry_run_leaves_torque_alone_and_prints_goals(arm: Arm, server: Server, folder: Path) -> None:
    before_s = arm.last_write_s("Torque_Enable", "Goal_Position")
    with Edge(folder, *arm.flags, f"--server_address={server.address}", "--dry_run=true") as edge:
        edge.wait_for("goal ")
        assert edge.end() == 0, edge.text
    assert arm.last_write_s("Torque_Enable", "Goal_Position") == before_s


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_the_server_is_there_ends_it_well(arm: Arm, folder: Path, number: int) -> None:
    with Edge(folder, *arm.flags, "--server_address=127.0.0.1:9", "--give_up_after_s=0") as edge:
        edge.wait_for("trying again")
        assert edge.end(number) == 0, edge.text


@pytest.mark.long
def test_frames_of_real_captures_drive_the_images_policy(folder: Path) -> None:
    with Arm(folder, "--goal=fixed") as arm:
        if not arm.ready["cameras"]:
            pytest.skip("no headless GL: the virtual arm has no cameras here")
        cameras = {name: {"type": "opencv", "index_or_path": url} for name, url in arm.ready["cameras"].items()}
        with Server(folder, "act_so101_cubes") as server:
            summary = folder / "summary.json"
            edge = Edge(
                folder,
                *(*arm.flags, f"--robot.cameras={json.dumps(cameras)}", f"--server_address={server.address}"),
                *("--episodes=2", f"--reset_url={arm.ready['http']}/episode", f"--summary={summary}"),
            )
            with edge:
                assert edge.wait() == 0, edge.text
    report = json.loads(summary.read_text())
    assert any(episode["success"] for episode in report["episodes"])
