"""The engine that lets LeRobot run its own policies: what LeRobot answers, alone, in batches, and over a connection."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_runtime.errors import ConfigError, ModelError, UsageError
from policy_server.bundle import STATE, TASK, features
from policy_server.engines import open_engine
from policy_server.engines.flow import NOISE
from policy_server.engines.lerobot import LeRobotPolicy
from policy_server.engines.providers import Runtime
from policy_server.engines.stated import Stated, StatedRobot, stated

SO101 = stated(StatedRobot("so101_follower"), [], [], 30.0)
CPU = Runtime("cpu")
Arrays = dict[str, Any]


def folder_of(name: str) -> Path:
    from tests.policy_server.export.conftest import folder_of

    return folder_of(name)


def act(tmp_path: Path) -> Path:
    """A copy of a checkpoint in the repository, to tamper with."""
    return Path(shutil.copytree(folder_of("act_so101_pick_place"), tmp_path / "act", copy_function=shutil.copyfile))


def test_a_checkpoint_says_what_it_takes_and_the_user_the_rest(tmp_path: Path) -> None:
    told = LeRobotPolicy(str(act(tmp_path)), SO101, "cpu")
    assert (told.policy.name, told.policy.type, told.policy.chunk_size, told.policy.fps) == ("act", "lerobot", 50, 30)
    assert [joint.name for joint in told.policy.joints][:2] == ["shoulder_pan.pos", "shoulder_lift.pos"]
    assert [(vector.name, vector.dimension) for vector in told.policy.extra_state] == [
        ("observation.environment_state", 5)
    ]
    assert not told.policy.uses_task
    two = LeRobotPolicy(str(folder_of("diffusion_tiny/ddim")), SO101, "cpu")
    assert (two.policy.chunk_size, two.n_obs_steps) == (8, 2)
    assert [(camera.name, camera.height, camera.width) for camera in two.policy.cameras] == [
        ("front", 96, 128),
        ("wrist", 96, 128),
    ]
    assert LeRobotPolicy(str(folder_of("smolvla_tiny")), SO101, "cpu").policy.uses_task


def test_other_weights_are_another_policy(tmp_path: Path) -> None:
    folder = act(tmp_path)
    before = LeRobotPolicy(str(folder), SO101, "cpu").policy.digest
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert LeRobotPolicy(str(folder), SO101, "cpu").policy.digest != before


@pytest.mark.parametrize("file", ["policy_preprocessor.json", "policy_postprocessor.json"])
def test_a_step_that_names_code_is_refused(file: str, tmp_path: Path) -> None:
    folder = act(tmp_path)
    pipeline = json.loads((folder / file).read_text())
    pipeline["steps"].append({"class": "os.system", "config": {}})
    (folder / file).write_text(json.dumps(pipeline))
    with pytest.raises(ModelError, match="no registry_name, and code that a file names is not run"):
        LeRobotPolicy(str(folder), SO101, "cpu")


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="neither a folder nor a repository"):
        LeRobotPolicy(str(tmp_path / "none"), SO101, "cpu")
    with pytest.raises(ModelError, match=r"config\.json: is missing"):
        LeRobotPolicy(str(tmp_path), SO101, "cpu")
    three = Stated(SO101.joints[:3], 30)
    with pytest.raises(ConfigError, match=r"names: 3 joints, but observation\.state of act has the shape \(6,\)"):
        LeRobotPolicy(str(act(tmp_path)), three, "cpu")


def test_without_lerobot_one_line_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "lerobot", None)
    with pytest.raises(ConfigError, match=r"lerobot is not usable here .*pip install .*\[lerobot\]"):
        open_engine(LeRobotPolicy(str(act(tmp_path)), SO101, "cpu"), CPU)


# From here on with LeRobot: `make test-lerobot`.
lerobot = pytest.mark.lerobot
quiet = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def inputs_of(told: LeRobotPolicy, stored: Arrays) -> Arrays:
    """LeRobot's raw inputs under the engine's names, batch first."""
    batch: Arrays = {}
    for name, feature in features(told.policy, told.n_obs_steps).items():
        short = "state" if name == STATE else f"image_{name.removeprefix('observation.images.')}"
        array = stored[name] if name in stored else stored[short]
        array = array if array.ndim > len(feature.shape) else array[None]
        batch[name] = array[:, 0] if array.ndim > len(feature.shape) + 1 else array
    batch["seed"] = np.zeros((len(batch[STATE]), 1), np.int64)
    if told.policy.uses_task:
        batch[TASK] = np.atleast_1d(stored["task"])
    return batch | ({NOISE: stored["noise"]} if "noise" in stored else {})


def narrow_resnet(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ResNet-18 with as many channels as the weights have: LeRobot takes torchvision's."""
    import torch
    import torchvision
    from safetensors import safe_open
    from torchvision.models.resnet import BasicBlock, ResNet

    with safe_open(folder / "model.safetensors", "pt") as file:
        first = next(name for name in file.keys() if name.endswith("backbone.0.weight"))  # noqa: SIM118
        base = file.get_slice(first).get_shape()[0]

    def resnet18(weights: object = None) -> Any:
        net = ResNet(BasicBlock, [2, 2, 2, 2])
        net.inplanes = base
        net.conv1, net.bn1 = torch.nn.Conv2d(3, base, 7, 2, 3, bias=False), torch.nn.BatchNorm2d(base)
        for number in range(4):
            layer = net._make_layer(BasicBlock, base * 2**number, 2, stride=1 if number == 0 else 2)
            setattr(net, f"layer{number + 1}", layer)
        return net

    monkeypatch.setattr(torchvision.models, "resnet18", resnet18)


def small_gemma(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gemma, SigLIP and a vocabulary of the weights' sizes, which LeRobot fixes in code; the tokenizer's path."""
    import importlib

    from safetensors import safe_open

    from policy_server.export.vlm import count_layers

    kind = json.loads((folder / "config.json").read_text())["type"]
    modelling = importlib.import_module(f"lerobot.policies.{kind}.modeling_{kind}")
    with safe_open(folder / "model.safetensors", "pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    root = "model.paligemma_with_expert."
    text, expert = f"{root}paligemma.model.language_model.", f"{root}gemma_expert.model."
    vision = f"{root}paligemma.model.vision_tower.vision_model.encoder."
    sizes = {
        variant: shapes[f"{part}layers.0.mlp.gate_proj.weight"][::-1]
        for variant, part in (("gemma_2b", text), ("gemma_300m", expert))
    }
    vocabulary, depth = shapes[f"{root}paligemma.lm_head.weight"][0], count_layers(shapes, f"{text}layers.")
    hidden, width = shapes[f"{vision}layers.0.mlp.fc1.weight"]
    seen = count_layers(shapes, f"{vision}layers.")

    def config_of(name: str) -> Any:
        return modelling.GemmaConfig(sizes[name][0], depth, sizes[name][1], 8, 1, 256)

    def smaller(build: Callable[..., Any], change: Callable[[Any], None]) -> Callable[..., Any]:
        def built(config: Any) -> Any:
            change(config)
            return build(config=config)

        return built

    def whole(config: Any) -> None:
        config._vocab_size = config.image_token_index = config.text_config.vocab_size = vocabulary
        eyes = config.vision_config
        eyes.hidden_size, eyes.intermediate_size, eyes.num_hidden_layers = width, hidden, seen
        eyes.projection_dim = sizes["gemma_2b"][0]

    def alone(config: Any) -> None:
        config.vocab_size = vocabulary

    monkeypatch.setattr(modelling, "get_gemma_config", config_of)
    for name, change in (("PaliGemmaForConditionalGenerationWithPiGemma", whole), ("PiGemmaForCausalLM", alone)):
        monkeypatch.setattr(modelling, name, smaller(getattr(modelling, name), change))
    monkeypatch.chdir(folder.parents[1])  # the checkpoint names its tokenizer by a path from there


def as_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parents[1])  # SmolVLA's checkpoint names its language model by a path from there


STORED = {
    "act_so101_pick_place": as_it_is,
    "act_so101_cubes": as_it_is,
    "act_random": as_it_is,
    "smolvla_tiny": as_it_is,
    "diffusion_tiny/ddim": narrow_resnet,
    "diffusion_tiny/single": narrow_resnet,
    "pi0_tiny": small_gemma,
    "pi05_tiny": small_gemma,
}


@lerobot
@quiet
@pytest.mark.parametrize("name", STORED)
def test_answers_as_lerobot_did(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(name)
    STORED[name](folder, monkeypatch)
    told = LeRobotPolicy(str(folder), SO101, "cpu")
    engine = open_engine(told, CPU)
    assert engine.provider == "torch on cpu"
    beside = folder if (folder / "reference.npz").is_file() else folder.parent
    with np.load(beside / "reference.npz", allow_pickle=False) as file:
        stored = dict(file)
    batch, expected = inputs_of(told, stored), stored["actions"]
    for row in range(len(expected)):
        alone = engine.infer({key: array[row : row + 1] for key, array in batch.items()})
        np.testing.assert_allclose(alone[0], expected[row], atol=1e-3)
    np.testing.assert_allclose(engine.infer(batch), expected, atol=1e-3)


def save(policy_class: Any, config: Any, folder: Path) -> Any:
    """A policy with random weights as LeRobot stores it; returns it."""
    import torch
    from lerobot.policies.factory import make_pre_post_processors

    from tests.policy_server.export.test_lerobot import statistics

    torch.manual_seed(0)
    policy = policy_class(config)
    if hasattr(policy, "vqbet"):
        policy.vqbet.action_head.vqvae_model.discretized.fill_(True)
    policy.save_pretrained(folder)
    for processor in make_pre_post_processors(config, dataset_stats=statistics()):
        processor.save_pretrained(folder)
    return policy.eval()


def diffusion(folder: Path) -> Any:
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig
    from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy

    config = DiffusionConfig(
        input_features={
            STATE: PolicyFeature(FeatureType.STATE, (6,)),
            "observation.images.front": PolicyFeature(FeatureType.VISUAL, (3, 96, 128)),
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (6,))},
        pretrained_backbone_weights=None,
        device="cpu",
        crop_shape=None,
        num_inference_steps=5,
        down_dims=(16, 32, 64),
    )
    return save(DiffusionPolicy, config, folder)


def vqbet(folder: Path) -> Any:
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.vqbet.configuration_vqbet import VQBeTConfig
    from lerobot.policies.vqbet.modeling_vqbet import VQBeTPolicy

    config = VQBeTConfig(
        input_features={
            STATE: PolicyFeature(FeatureType.STATE, (6,)),
            "observation.images.front": PolicyFeature(FeatureType.VISUAL, (3, 96, 128)),
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (6,))},
        pretrained_backbone_weights=None,
        device="cpu",
        crop_shape=(84, 84),
        gpt_n_layer=2,
        gpt_hidden_dim=64,
        gpt_n_head=4,
    )
    return save(VQBeTPolicy, config, folder)


@lerobot
@quiet
@pytest.mark.parametrize("make", [diffusion, vqbet])
def test_the_last_observations_are_those_that_lerobots_own_loop_would_have_kept(
    make: Callable[[Path], Any], tmp_path: Path
) -> None:
    import torch
    from lerobot.policies.factory import make_pre_post_processors

    policy = make(tmp_path / "made")
    told = LeRobotPolicy(str(tmp_path / "made"), SO101, "cpu")
    rows, looks = told.policy.chunk_size, told.n_obs_steps
    assert looks > 1
    pre, post = make_pre_post_processors(policy.config, pretrained_path=str(tmp_path / "made"))
    random = np.random.default_rng(0)
    states = random.standard_normal((2 * rows, 6)).astype(np.float32)
    frames = random.integers(0, 256, (2 * rows, 96, 128, 3), dtype=np.uint8)
    policy.reset()
    taken = []
    for tick in range(2 * rows):
        if tick == rows:  # here the next chunk is made, from the last observations
            torch.manual_seed(7)
        image = torch.from_numpy(frames[tick]).permute(2, 0, 1).float() / 255
        seen = pre({STATE: torch.from_numpy(states[tick]), "observation.images.front": image})
        with torch.no_grad():
            taken.append(post(policy.select_action(seen))[0].numpy())
    last = slice(rows + 1 - looks, rows + 1)
    batch = {STATE: states[None, last], "observation.images.front": frames[None, last], "seed": np.array([[7]])}
    np.testing.assert_allclose(open_engine(told, CPU).infer(batch)[0], taken[rows:], atol=1e-4)


@lerobot
@quiet
def test_a_policy_that_takes_one_observation_at_a_time_gets_them_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from lerobot.policies.act.modeling_act import ACTPolicy

    predict = ACTPolicy.predict_action_chunk

    def alone(self: Any, batch: Any) -> Any:
        assert len(batch[STATE]) == 1, "a batch"
        return predict(self, batch)

    told = LeRobotPolicy(str(folder_of("act_so101_pick_place")), SO101, "cpu")
    random = np.random.default_rng(0)
    batch = {
        name: random.standard_normal((3, *each.shape)).astype(np.float32)
        for name, each in features(told.policy, told.n_obs_steps).items()
    }
    batch["seed"] = np.zeros((3, 1), np.int64)
    expected = open_engine(told, CPU).infer(batch)
    monkeypatch.setattr(ACTPolicy, "predict_action_chunk", alone)
    engine = open_engine(told, CPU)
    engine.warm_up([1, 2, 4], lambda progress: None)
    np.testing.assert_allclose(engine.infer(batch), expected, atol=1e-4)


@lerobot
@quiet
def test_a_server_offers_a_checkpoint_to_robots() -> None:
    from scripts.rig.robots import Robot, hello_to, look
    from tests.policy_server.conftest import serving

    offered = LeRobotPolicy(str(folder_of("act_so101_pick_place")), SO101, "cpu")
    extra = {"observation.environment_state": np.zeros(5, np.float32)}
    seen = replace(look(1), state=np.zeros(6, np.float32), extra_state=extra)
    with (
        serving(offered) as server,
        Robot(server.address, hello_to(offered.policy)) as robot,
    ):
        chunk = robot.welcomed().ask(seen)
    assert chunk.actions.shape == (50, 6)
    assert np.isfinite(chunk.actions).all()
