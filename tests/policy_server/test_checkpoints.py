"""From a LeRobot checkpoint to a server that serves it: recognised, exported once, or one line that says how."""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import CancelledError, Future
from pathlib import Path

import pytest

from edge_runtime.config import StartConfig
from edge_runtime.errors import ConfigError, EdgeRuntimeError, UsageError
from edge_runtime.link.local_server import robot_of
from edge_runtime.program import extras, flags
from policy_server import bundle, cli
from policy_server.engines import checkpoint_folder, exported
from policy_server.engines.stated import Stated, of_robot

CHECKPOINT = Path(__file__).resolve().parents[1] / "checkpoints" / "act_so101_pick_place"
SO101 = Stated(of_robot("so101_follower"), 30.0, "so101_follower")


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """As lerobot-train leaves it: outputs/train/cubes/checkpoints/{000100,last}/pretrained_model."""
    checkpoints = tmp_path / "outputs/train/cubes/checkpoints"
    (checkpoints / "000100/pretrained_model").mkdir(parents=True)
    (checkpoints / "000100/pretrained_model/config.json").write_text("{}")
    (checkpoints / "last").symlink_to("000100")
    return checkpoints.parent


@pytest.mark.parametrize("below", [".", "checkpoints/last", "checkpoints/000100", "checkpoints/last/pretrained_model"])
def test_each_level_of_a_training_run_leads_to_the_checkpoint(run_folder: Path, below: str) -> None:
    found = checkpoint_folder.find(str(run_folder / below))
    assert found is not None
    assert (found / "config.json").is_file()
    assert checkpoint_folder.title(str(found)) == "cubes"


def test_a_bundle_is_no_checkpoint() -> None:
    assert checkpoint_folder.find(str(bundle.SHIPPED / "act_so101_pick_place")) is None


def test_a_hub_id_is_found_in_the_cache_and_its_download_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UsageError, match=r"hf download lerobot/act_x\)"):
        cli._sources(flags.parse(cli_config(), ["lerobot/act_x"], "", positional="bundles"), [])
    repository = tmp_path / "models--lerobot--act_x"
    shutil.copytree(CHECKPOINT, repository / "snapshots" / "abc")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    assert checkpoint_folder.find("lerobot/act_x") == repository / "snapshots" / "abc"


def test_what_a_checkpoint_does_not_say_is_asked_for_in_one_line() -> None:
    with pytest.raises(UsageError, match=r"is a LeRobot checkpoint: fps is missing: --fps=30.*--robot.type"):
        serve(str(CHECKPOINT))
    with pytest.raises(ConfigError, match=r"is a LeRobot checkpoint: robot.type: a checkpoint holds neither"):
        serve(str(CHECKPOINT), "--fps=30")


def test_a_bundle_is_told_neither_joints_nor_rate() -> None:
    with pytest.raises(ConfigError, match="a bundle says its joints and rate itself"):
        serve("act_so101_pick_place", "--fps=30")


def test_without_torch_the_line_to_type_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exported, "NEEDS", ("no_such_module",))
    with pytest.raises(ConfigError) as refused:
        exported.bundle_of(str(CHECKPOINT), CHECKPOINT, SO101, tmp_path, Future())
    assert extras.install("export") in str(refused.value)
    line = f"export-onnx {CHECKPOINT} --output=act_so101_pick_place --fps=30 --robot.type=so101_follower"
    assert str(refused.value).endswith(line)


@pytest.fixture
def export(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Stands in for torch: an `export-onnx` that copies a shipped bundle; what it was given."""
    given: list[list[str]] = []
    start = subprocess.Popen
    copy = (
        "import shutil, sys; out = next(a for a in sys.argv if a.startswith('--output=')).partition('=')[2];"
        f"shutil.copytree({str(bundle.SHIPPED / 'act_so101_pick_place')!r}, out); print('    1.0 s  wrote it')"
    )

    def popen(command: list[str], **how: object) -> object:
        given.append(command)
        return start([sys.executable, "-c", copy, *command[4:]], **how)  # type: ignore[call-overload]

    monkeypatch.setattr(exported, "NEEDS", ())
    monkeypatch.setattr(exported.subprocess, "Popen", popen)
    return given


def test_a_checkpoint_is_exported_once_for_what_was_stated(tmp_path: Path, export: list[list[str]]) -> None:
    first = exported.bundle_of(str(CHECKPOINT), CHECKPOINT, SO101, tmp_path, Future())
    assert bundle.load(first).policy.name
    assert exported.bundle_of(str(CHECKPOINT), CHECKPOINT, SO101, tmp_path, Future()) == first
    assert len(export) == 1
    assert export[0][4:] == [str(CHECKPOINT), f"--output={first}", "--fps=30", "--robot.type=so101_follower"]
    slower = Stated(SO101.joints, 15.0, "so101_follower")
    assert exported.bundle_of(str(CHECKPOINT), CHECKPOINT, slower, tmp_path, Future()) != first
    assert len(export) == 2


def test_another_weight_is_another_bundle(tmp_path: Path, export: list[list[str]]) -> None:
    mine = tmp_path / "mine"
    shutil.copytree(CHECKPOINT, mine)
    first = exported.bundle_of(str(mine), mine, SO101, tmp_path, Future())
    (mine / "model.safetensors").write_bytes(b"other")
    assert exported.bundle_of(str(mine), mine, SO101, tmp_path, Future()) != first


def test_what_the_export_ends_with_is_said_with_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{}")
    start = subprocess.Popen
    fail = "import sys; sys.exit('export-onnx: config.json: policy type None is not supported') or 65"
    monkeypatch.setattr(exported, "NEEDS", ())
    monkeypatch.setattr(exported.subprocess, "Popen", lambda command, **how: start([sys.executable, "-c", fail], **how))
    with pytest.raises(EdgeRuntimeError, match="policy type None is not supported"):
        exported.bundle_of(str(broken), broken, SO101, tmp_path, Future())


def test_a_server_that_is_stopped_stops_the_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, stop = subprocess.Popen, Future[None]()

    def popen(command: list[str], **how: object) -> object:
        process = start([sys.executable, "-c", "import signal; signal.pause()"], **how)  # type: ignore[call-overload]
        stop.set_result(None)
        return process

    monkeypatch.setattr(exported, "NEEDS", ())
    monkeypatch.setattr(exported.subprocess, "Popen", popen)
    with pytest.raises(CancelledError):
        exported.bundle_of(str(CHECKPOINT), CHECKPOINT, SO101, tmp_path, stop)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--robot.type=so101_follower"], ["--fps=30", "--robot.type=so101_follower", "--robot.use_degrees=true"]),
        (["--robot.type=none", "--robot.joints={a: m}", "--fps=5"], ["--fps=5", "--names=a", "--units=m"]),
    ],
)
def test_the_robot_that_runs_says_what_the_checkpoint_does_not(given: list[str], told: list[str]) -> None:
    config = flags.parse(StartConfig, [*given, f"--bundle={CHECKPOINT}"], prog="")
    assert robot_of(config) == told
    shipped = flags.parse(StartConfig, [*given, "--bundle=act_so101_pick_place"], prog="")
    assert robot_of(shipped) == []
    by_path = flags.parse(StartConfig, [*given, f"--bundle={bundle.SHIPPED / 'act_so101_pick_place'}"], prog="")
    assert robot_of(by_path) == []


def cli_config() -> type:
    from policy_server.config import ServerConfig

    return ServerConfig


def serve(*argv: str) -> None:
    cli._sources(cli._exported(flags.parse(cli_config(), list(argv), "", positional="bundles"), Future()), [])


@pytest.mark.export
def test_a_real_checkpoint_becomes_a_bundle_that_runs(tmp_path: Path) -> None:
    made = exported.bundle_of(str(CHECKPOINT), CHECKPOINT, SO101, tmp_path, Future())
    assert bundle.load(made).policy.fps == 30
    with pytest.raises(EdgeRuntimeError, match="joints"):
        exported.bundle_of(str(CHECKPOINT), CHECKPOINT, Stated(SO101.joints[:2], 30.0), tmp_path, Future())
