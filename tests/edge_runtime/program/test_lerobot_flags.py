"""LeRobot's commands, typed as they stand: taken, or answered in one message that ends with the command to type."""

from __future__ import annotations

import ast
import importlib.util
import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest

from edge_runtime.config import StartConfig
from edge_runtime.errors import EdgeRuntimeError, UsageError
from edge_runtime.program import flags
from edge_runtime.program.lerobot_flags import EXPORT, ROBOT, SERVER, Theirs, translated
from policy_server.config import ServerConfig

PAGE = Path(__file__).resolve().parents[3] / "docs" / "lerobot-users.md"
CAMERAS = '--robot.cameras="{ front: {type: opencv, index_or_path: 0, width: 640, height: 480, fps: 30}}"'
CLIENT = f"""--server_address=127.0.0.1:8080 --robot.type=so100_follower --robot.port=/dev/ttyACM0
    --robot.id=follower_so100 {CAMERAS} --task="dummy" --policy_type=your_policy_type
    --pretrained_name_or_path=user/model --policy_device=mps --actions_per_chunk=50 --chunk_size_threshold=0.5
    --aggregate_fn_name=weighted_average --debug_visualize_queue_size=True"""
ROLLOUT = f"""--strategy.type=base --policy.path=lerobot/pi0_base --inference.type=rtc
    --inference.rtc.execution_horizon=10 --inference.rtc.max_guidance_weight=10.0 --robot.type=so100_follower
    --robot.port=/dev/ttyACM0 {CAMERAS} --task="pick up cube" --duration=60"""
RECORD = f"""--robot.type=so101_follower --robot.port=/dev/ttyACM0 {CAMERAS} --robot.id=me --display_data=false
    --dataset.repo_id=me/eval_so101 --dataset.single_task="Put it in" --teleop.type=so100_leader
    --policy.path outputs/train/x/checkpoints/last/pretrained_model --robot.disable_torque_on_disconnect=true"""


def start(line: str) -> StartConfig:
    return flags.parse(StartConfig, translated(shlex.split(line), ROBOT, "edge-runtime start"), prog="")


def answer(line: str) -> str:
    with pytest.raises(UsageError) as refused:
        start(line)
    return str(refused.value)


def test_the_tutorials_robot_client_is_answered_at_once_and_the_command_works() -> None:
    said = answer(CLIENT)
    for flag in ("policy_type", "pretrained_name_or_path", "policy_device", "debug_visualize_queue_size"):
        assert f"--{flag}: " in said
    assert "policy-server start user/model --fps=30 --robot.type=so100_follower" in said
    config = start(said.partition("; here: edge-runtime start ")[2])
    assert (config.server_address, config.actions_per_chunk, config.chunk_size_threshold) == ("127.0.0.1:8080", 50, 0.5)
    assert config.aggregate_fn_name == "weighted_average"
    assert list(config.robot.cameras) == ["front"]


def test_a_rollout_is_taken_as_it_stands() -> None:
    config = start(ROLLOUT)
    assert (config.bundle, config.duration_s, config.task) == (Path("lerobot/pi0_base"), 60.0, "pick up cube")
    assert (config.rtc.enabled, config.rtc.execution_horizon, config.rtc.max_guidance_weight) == (True, 10, 10.0)


def test_a_record_command_with_a_policy_is_answered_and_the_command_works() -> None:
    said = answer(RECORD)
    assert "--dataset.repo_id: " in said
    assert "--teleop.type: " in said
    config = start(said.partition("; here: edge-runtime start ")[2])
    assert config.bundle == Path("outputs/train/x/checkpoints/last/pretrained_model")
    assert (config.task, config.robot.stop_policy) == ("Put it in", "limp")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("--robot.disable_torque_on_disconnect=false", "--robot.stop_policy=hold"),
        ("--return_to_initial_position=True", "--robot.stop_policy=park"),
        ("--inference.rtc.prefix_attention_schedule=EXP", "--rtc.prefix_attention_schedule=exp"),
        ("--rename_map={observation.images.front: observation.images.top}", "--rename_map={front: top}"),
        ("--play_sounds=false", ""),
        ("--robot.port /dev/a -- b", "--robot.port /dev/a -- b"),
    ],
)
def test_what_means_the_same_is_taken(theirs: str, ours: str) -> None:
    words = [theirs] if "{" in theirs else theirs.split()
    assert translated(words, ROBOT, "x") == ([ours] if "{" in ours else ours.split())


def test_the_tutorials_policy_server_is_taken_and_what_is_missing_named() -> None:
    words = ["--host=0.0.0.0", "--port=8765", "act_so101_pick_place"]
    assert flags.parse(ServerConfig, translated(words, SERVER, ""), "", positional="bundles").listen == "0.0.0.0:8765"
    words = ["--host=127.0.0.1", "--port=8080", "--fps=30", "--inference_latency=0.033", "--obs_queue_timeout=1"]
    with pytest.raises(UsageError) as refused:
        translated(words, SERVER, "policy-server start")
    assert "--inference_latency: " in str(refused.value)
    assert "--obs_queue_timeout: " in str(refused.value)
    assert str(refused.value).endswith("; here: policy-server start --fps=30 --listen=127.0.0.1:8080")


def test_every_flag_of_the_tables_stands_on_the_page() -> None:
    page = PAGE.read_text()
    missing = [name for table in (ROBOT, SERVER, EXPORT) for name in table if f"`{name}" not in page]
    assert missing == []


@pytest.mark.parametrize("name", [name for name, theirs in ROBOT.items() if theirs.ours])
def test_what_is_taken_is_a_flag_here(name: str) -> None:
    value = {"policy.path": "x", "dataset.single_task": "x", "inference.rtc.enabled": "true"}.get(name, "10")
    start(f"--robot.type=so101_follower --{name}={value}")


@pytest.mark.parametrize("name", [name for name, theirs in ROBOT.items() if theirs.values])
def test_every_value_that_is_taken_is_one_here(name: str) -> None:
    for value in ROBOT[name].values:
        start(f"--robot.type=so101_follower --{name}={value}")


@pytest.mark.lerobot
def test_every_flag_of_lerobots_own_parsers_is_known() -> None:
    """LeRobot 0.6.1: each field of its commands' dataclasses is taken by our parser or stands in the table."""
    client = fields("async_inference/configs.py", "RobotClientConfig")
    theirs = (
        client + fields("rollout/configs.py", "RolloutConfig") + fields("scripts/lerobot_record.py", "RecordConfig")
    )
    theirs += [f"robot.{name}" for name in fields("robots/so_follower/config_so_follower.py", "SOFollowerConfig")]
    groups = {"teleop", "policy", "strategy", "inference", "dataset"}
    assert {f"{group}." for group in groups} <= set(ROBOT)
    unknown = [name for name in theirs if name not in groups and not known(name, StartConfig, ROBOT)]
    server = fields("async_inference/configs.py", "PolicyServerConfig")
    assert unknown + [name for name in server if not known(name, ServerConfig, SERVER)] == []


def fields(module: str, name: str) -> list[str]:
    """Of a dataclass of the installed LeRobot, from its source: importing it takes more extras than are here."""
    package = importlib.util.find_spec("lerobot")
    assert package is not None
    assert package.submodule_search_locations
    tree = ast.parse(Path(package.submodule_search_locations[0], module).read_text())
    body = next(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name)
    named = [each.target for each in body if isinstance(each, ast.AnnAssign)]
    found = [each.id for each in named if isinstance(each, ast.Name)]
    assert found
    return found


def known(name: str, config: type, table: Mapping[str, Theirs]) -> bool:
    try:
        flags.parse(config, translated([f"--{name}=0"], table, ""), prog="")
    except EdgeRuntimeError as error:
        return "unknown flag" not in str(error)
    return True
