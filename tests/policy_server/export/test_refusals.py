"""What cannot be exported faithfully is refused: one sentence, the right exit code, nothing left behind."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from policy_server.export.cli import main
from tests.policy_server.export import layouts
from tests.policy_server.export.conftest import SMALL, edit, edit_step

pytestmark = pytest.mark.export
ACT, SMOLVLA = "act_so101_pick_place", "smolvla_tiny"
STATED = ("--robot.type=so101_follower", "--fps=30")
PRE, POST = "policy_preprocessor.json", "policy_postprocessor.json"


@dataclass(frozen=True)
class Case:
    """What is done to a checkpoint, or said on the command line, and how it ends."""

    checkpoint: str
    spoil: Callable[[Path], object]
    code: int
    message: str
    stated: tuple[str, ...] = STATED


def nothing(folder: Path) -> None:
    pass


def config(**changes: object) -> Callable[[Path], object]:
    return lambda folder: edit(folder / "config.json", **changes)


def weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], object]:
    def spoil(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return spoil


def statistic(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], object]:
    def spoil(folder: Path) -> None:
        tensors = load_file(path := layouts.statistics(folder, "policy_preprocessor"))
        change(tensors)
        save_file(tensors, path)

    return spoil


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def lose_a_shard(folder: Path) -> None:
    layouts.to_shards(folder)
    next(folder.glob("model-00002*")).unlink()


def unreadable(name: str) -> Callable[[Path], object]:
    """A regular file that opens and gives an error when read, also for root."""

    def spoil(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to("/proc/self/mem")

    return spoil


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def extra_step(file: str, name: str, **options: object) -> Callable[[Path], object]:
    def spoil(folder: Path) -> None:
        pipeline = json.loads((folder / file).read_text())
        pipeline["steps"].append({"registry_name": name, "config": options})
        (folder / file).write_text(json.dumps(pipeline))

    return spoil


def without_steps(*names: str) -> Callable[[Path], object]:
    def spoil(folder: Path) -> None:
        pipeline = json.loads((folder / PRE).read_text())
        pipeline["steps"] = [step for step in pipeline["steps"] if step["registry_name"] not in names]
        (folder / PRE).write_text(json.dumps(pipeline))

    return spoil


def rename(**names: str) -> Callable[[Path], object]:
    table = {f"observation.{old}": f"observation.{new}" for old, new in names.items()}
    return lambda folder: edit_step(folder, PRE, "rename_observations_processor", rename_map=table)


def swap_tokenizer(folder: Path) -> None:
    """A vocabulary larger than the policy's."""
    path = folder.parent / "vlm" / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    tokenizer["added_tokens"] += [{"id": 400 + n, "content": f"<extra{n}>", **plain} for n in range(60)]
    path.write_text(json.dumps(tokenizer))


CASES = {
    # the checkpoint
    "unknown type": Case(ACT, config(type="tdmpc"), 65, "policy type tdmpc is not supported; expected act"),
    "no config": Case(ACT, lambda f: (f / "config.json").unlink(), 65, "no config.json"),
    "config not JSON": Case(ACT, lambda f: (f / "config.json").write_text("{"), 65, "config.json: is not JSON"),
    "config unreadable": Case(ACT, unreadable("config.json"), 65, "config.json: cannot be read: Input/output error"),
    "processors unreadable": Case(ACT, unreadable(PRE), 65, "ValueError: cannot be read: Input/output error"),
    "shards unreadable": Case(
        ACT,
        lambda f: (layouts.to_shards(f), unreadable("model.safetensors.index.json")(f)),
        65,
        "names the shards (cannot be read: Input/output error)",
    ),
    "tokenizer unreadable": Case(SMOLVLA, unreadable("../vlm/tokenizer.json"), 65, "tokenizer.json: cannot be read: "),
    "the language model's config unreadable": Case(
        SMOLVLA, unreadable("../vlm/config.json"), 65, "config.json of vlm: cannot be read: "
    ),
    "statistics unreadable": Case(ACT, nothing, 78, "cannot be read: ", (*STATED, "--stats=/proc/self/mem")),
    "history": Case(ACT, config(n_obs_steps=2), 65, "n_obs_steps: 2; LeRobot's act looks at one observation"),
    "peft": Case(ACT, config(use_peft=True), 65, "merge it into its base model"),
    "adapter": Case(ACT, lambda f: (f / "adapter_config.json").write_text("{}"), 65, "merge it into its base model"),
    "no state": Case(
        ACT,
        config(input_features={"observation.environment_state": {"type": "ENV", "shape": [5]}}),
        65,
        "no observation.state",
    ),
    "old input shapes": Case(ACT, config(input_features=None), 65, "input_features is not a table"),
    "unknown activation": Case(ACT, config(feedforward_activation="glu"), 65, "feedforward_activation: glu; expected"),
    "missing setting": Case(ACT, config(dim_model=None), 65, "dim_model is null"),
    "aloha": Case(SMOLVLA, config(adapt_to_pi_aloha=True), 65, "adapt_to_pi_aloha: the policy converts Aloha's joints"),
    "aloha deltas": Case(SMOLVLA, config(use_delta_joint_actions_aloha=True), 65, "predicts deltas"),
    "no square": Case(SMOLVLA, config(resize_imgs_with_padding=[128, 96]), 65, "128x96 is not a square"),
    "no whole patches": Case(SMOLVLA, config(resize_imgs_with_padding=[100, 100]), 65, "not a multiple of 64"),
    "fewer expert layers": Case(SMOLVLA, config(num_vlm_layers=2), 65, "num_expert_layers: 4 layers beside 4"),
    # its weights
    "no weights": Case(ACT, lambda f: (f / "model.safetensors").unlink(), 65, "it holds no weights"),
    "truncated": Case(ACT, truncate, 65, "not a whole safetensors file"),
    "pickled": Case(ACT, pickled, 65, "pickled weights are never loaded"),
    "a tensor missing": Case(
        ACT, weights(lambda t: t.pop("model.action_head.bias")), 65, "lack model.action_head.bias"
    ),
    "a tensor left over": Case(
        ACT, weights(lambda t: t.update({"model.gate.weight": torch.zeros(1)})), 65, "hold unknown model.gate.weight"
    ),
    "another shape": Case(ACT, config(dim_feedforward=256), 65, "has the shape [512, 128], expected [256, 128]"),
    "diverged": Case(ACT, weights(lambda t: t["model.action_head.bias"].fill_(torch.nan)), 65, "is not finite"),
    "left over beside SmolVLA": Case(
        SMOLVLA, weights(lambda t: t.update({"model.other": torch.zeros(1)})), 65, "hold unknown model.other"
    ),
    "a shard missing": Case(ACT, lose_a_shard, 65, "the shard model-00002-of-00003"),
    # its statistics
    "statistics' file missing": Case(
        ACT, lambda f: layouts.statistics(f, "policy_preprocessor").unlink(), 65, "the statistics that normalizer"
    ),
    "a statistic missing": Case(
        ACT, statistic(lambda t: t.pop("observation.state.std")), 65, "no std for it in the checkpoint; give --stats"
    ),
    "no statistics up to 0.3": Case(
        ACT, lambda f: [p.unlink() for p in f.glob("policy_*")], 65, "no mean for it in the checkpoint; give --stats"
    ),
    "infinite statistics": Case(
        ACT, lambda f: layouts.to_0_3(f, change=lambda t: torch.full_like(t, torch.inf)), 65, "mean is not finite"
    ),
    "two data sets": Case(
        SMOLVLA, lambda f: layouts.to_0_3(f, sets=("so100", "so100-red")), 65, "(so100, so100-red); give the right ones"
    ),
    "a mode nobody knows": Case(
        ACT,
        lambda f: edit_step(f, PRE, "normalizer_processor", norm_map={"STATE": "LOG", "ACTION": "MEAN_STD"}),
        65,
        "unknown mode LOG",
    ),
    "a feature that is not scaled": Case(
        ACT,
        lambda f: edit_step(f, PRE, "normalizer_processor", features={}),
        65,
        "observation.state is missing from its",
    ),
    "only some features": Case(
        ACT,
        lambda f: edit_step(f, PRE, "normalizer_processor", normalize_observation_keys=["observation.state"]),
        65,
        "normalize_observation_keys is not supported",
    ),
    "two modes for actions": Case(
        ACT,
        lambda f: edit_step(f, POST, "unnormalizer_processor", norm_map={"ACTION": "MIN_MAX"}),
        65,
        "ACTION is MEAN_STD before the policy and MIN_MAX after it",
    ),
    # its processors
    "relative actions": Case(
        ACT, extra_step(PRE, "relative_actions_processor", enabled=True), 65, "predicts actions relative to the state"
    ),
    "delta actions": Case(ACT, extra_step(POST, "delta_action_processor"), 65, "predicts deltas, not joint targets"),
    "an unknown step": Case(ACT, extra_step(PRE, "crop_processor"), 65, "the step crop_processor is not supported"),
    "half of the processors": Case(ACT, lambda f: (f / POST).unlink(), 65, "policy_postprocessor.json: not a LeRobot"),
    "no normaliser": Case(ACT, without_steps("normalizer_processor"), 65, "normalizer_processor: the step is missing"),
    "half precision inputs": Case(
        ACT, lambda f: edit_step(f, PRE, "device_processor", float_dtype="float16"), 65, "float_dtype float16 rounds"
    ),
    "another name for the joints": Case(
        ACT, rename(joints="state"), 65, "rename_map: observation.state would be observation.joints; expected"
    ),
    "a camera without a name": Case(
        SMOLVLA,
        rename(image="images.front"),
        65,
        "the camera observation.image has no name; expected observation.images.NAME",
    ),
    "two inputs with one name": Case(ACT, rename(state="environment_state"), 65, "rename_map:"),
    "no newline": Case(SMOLVLA, without_steps("smolvla_new_line_processor"), 65, "no tokenizer_processor with smolvla"),
    "padding on the left": Case(
        SMOLVLA, lambda f: edit_step(f, PRE, "tokenizer_processor", padding_side="left"), 65, "padding_side is left"
    ),
    "another model's tokenizer": Case(SMOLVLA, swap_tokenizer, 65, "it belongs to another model"),
    "the language model's config": Case(
        SMOLVLA, lambda f: (f.parent / "vlm" / "config.json").unlink(), 65, "is not at hand; give the model's folder"
    ),
    "a free number of tokens beyond what the engine takes": Case(
        SMOLVLA,
        lambda f: edit_step(f, PRE, "tokenizer_processor", max_length=64),
        78,
        "dynamic: the policy takes 64 tokens at most, and a free number ends at 48",
        (*STATED, "--dynamic"),
    ),
    "a free number of tokens short of what the engine takes": Case(
        SMOLVLA,
        lambda f: edit_step(f, PRE, "tokenizer_processor", max_length=24),
        78,
        "takes 24",
        (*STATED, "--dynamic"),
    ),
    # what the user states
    "tokenizer folder": Case(SMOLVLA, nothing, 78, "holds no tokenizer.json", (*STATED, "--tokenizer=/nowhere")),
    "too few names": Case(
        ACT,
        nothing,
        78,
        "names: 5 joints (a, b, c, d, e), but observation.state has 6 numbers",
        ("--names=a,b,c,d,e", "--units=degrees", "--fps=30"),
    ),
    "units for others": Case(
        ACT, nothing, 78, "units: 2 for 6 names", ("--names=a,b,c,d,e,f", "--units=m,rad", "--fps=30")
    ),
    "the same name twice": Case(ACT, nothing, 78, "different names", ("--names=a,b,c,d,e,a", "--units=m", "--fps=30")),
    "names alone": Case(ACT, nothing, 78, "neither joint names nor units", ("--names=a,b,c,d,e,f", "--fps=30")),
    "neither names nor robot": Case(ACT, nothing, 78, "neither joint names nor units", ("--fps=30",)),
    "both": Case(ACT, nothing, 78, "give either", (*STATED, "--names=a")),
    "a robot not in the table": Case(
        ACT, nothing, 78, "robot.type: aloha is not in the table", ("--robot.type=aloha", "--fps=30")
    ),
    "no rate": Case(ACT, nothing, 78, "fps: 0 is not in", ("--robot.type=so101_follower", "--fps=0")),
    "a camera it lacks": Case(
        SMOLVLA, nothing, 78, "image_size: top is not a camera", (*STATED, "--image_size.top=640x480")
    ),
    "statistics that are not there": Case(ACT, nothing, 78, "is not a file", (*STATED, "--stats=/nowhere.json")),
    "statistics that no file can be": Case(
        ACT, nothing, 78, "is longer than the name of a file may be", (*STATED, f"--stats={'a' * 300}")
    ),
    "fps missing": Case(ACT, nothing, 64, "fps is missing", ("--robot.type=so101_follower",)),
    "unknown flag": Case(ACT, nothing, 64, "unknown flag --fast", (*STATED, "--fast")),
    "no size": Case(ACT, nothing, 78, "image_size: 'big' is not WIDTHxHEIGHT", (*STATED, "--image_size=big")),
    "an opset of old": Case(ACT, nothing, 78, "opset: 9 is not one of 18, 19", (*STATED, "--opset=9")),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_refused(case: Case, copy: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = copy(case.checkpoint)
    case.spoil(folder)
    language_model = tmp_path / "vlm"
    tokenizer = [f"--tokenizer={language_model}"] if language_model.is_dir() else []
    before = sorted(path.name for path in tmp_path.iterdir())
    code = main([str(folder), f"--output={tmp_path / 'bundle'}", *tokenizer, *case.stated])
    said = capsys.readouterr().err
    assert (code, said.count("\n")) == (case.code, 1), said
    assert case.message in said
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_checkpoint_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none"), f"--output={tmp_path / 'bundle'}", *STATED]) == 64
    assert "is neither a folder nor a repository" in capsys.readouterr().err


def test_an_output_that_exists(copy: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bundle").mkdir()
    assert main([str(copy(ACT)), f"--output={tmp_path / 'bundle'}", *STATED]) == 73
    assert "exists; remove it or choose another folder" in capsys.readouterr().err
    assert list((tmp_path / "bundle").iterdir()) == []


def test_an_output_that_cannot_be_made(
    copy: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main([str(copy(ACT)), f"--output={tmp_path / 'file' / 'bundle'}", *STATED]) == 73
    assert "cannot write" in capsys.readouterr().err


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Writing beyond it fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk(copy: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = copy(ACT)
    with files_of_at_most(100_000):
        code = main([str(folder), f"--output={tmp_path / 'new' / 'bundle'}", *STATED])
    assert code == 73
    assert "cannot write" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [ACT]


def test_a_signal_in_the_middle(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "policy_server.export.cli",
        str(SMALL / ACT),
        f"--output={tmp_path / 'bundle'}",
        *STATED,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any("exporting" in line for line in process.stdout)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
