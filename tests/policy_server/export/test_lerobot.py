"""Live against LeRobot 0.4.4, where it is installed: the same policy, for every option that changes its arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edge_runtime.wire.messages import Floats
from policy_server.bundle import IMAGES, TASK
from policy_server.engines.flow import NOISE
from policy_server.export.checkpoint import load
from policy_server.export.parity import Difference, Observation
from policy_server.export.policies import Policy, build
from tests.policy_server.export.conftest import SMALL, folder_of

pytest.importorskip("lerobot", reason="LeRobot is not installed")
pytestmark = [
    pytest.mark.lerobot,
    # of LeRobot and of what it imports; ours are errors still
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
SIZE = (96, 128)
STATE, ACTION, FRONT, WRIST = "observation.state", "action", f"{IMAGES}front", f"{IMAGES}wrist"


def statistics() -> dict[str, dict[str, torch.Tensor]]:
    """Made-up ones, with an `action` range that is empty in one joint."""
    random = torch.Generator().manual_seed(0)

    def of(shape: tuple[int, ...]) -> dict[str, torch.Tensor]:
        low, width = torch.randn(shape, generator=random) * 30, torch.rand(shape, generator=random) * 50 + 1
        span = {"min": low, "q01": low + 1, "q10": low + 2, "q90": low + width, "q99": low + width + 1}
        return span | {"max": low + width + 2, "mean": low + width / 2, "std": width / 4}

    colours = {name: torch.rand(3, 1, 1, generator=random) / 2 for name in ("min", "mean", "std", "q01", "q10")}
    colours |= {name: 0.5 + torch.rand(3, 1, 1, generator=random) / 2 for name in ("max", "q99", "q90")}
    stats = {
        STATE: of((6,)),
        ACTION: of((6,)),
        "observation.environment_state": of((5,)),
        FRONT: colours,
        WRIST: colours,
    }
    for name in ("max", "q90", "q99"):
        stats[ACTION][name][5] = stats[ACTION][{"max": "min", "q90": "q10", "q99": "q01"}[name]][5]
    return stats


def processors(config: Any, **options: Any) -> tuple[Any, Any]:
    from lerobot.policies.factory import make_pre_post_processors

    pre, post = make_pre_post_processors(config, **options)
    return pre, post


def save_act(folder: Path, inputs: tuple[str, ...], mode: str, **options: Any) -> None:
    """An ACT with random weights, stored as LeRobot stores it."""
    from lerobot.configs.types import FeatureType, NormalizationMode, PolicyFeature
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy

    features = {
        STATE: PolicyFeature(FeatureType.STATE, (6,)),
        "observation.environment_state": PolicyFeature(FeatureType.ENV, (5,)),
        FRONT: PolicyFeature(FeatureType.VISUAL, (3, *SIZE)),
        WRIST: PolicyFeature(FeatureType.VISUAL, (3, *SIZE)),
    }
    small = {"dim_model": 32, "n_heads": 4, "dim_feedforward": 64, "n_encoder_layers": 2, "n_vae_encoder_layers": 1}
    torch.manual_seed(0)
    config = ACTConfig(
        input_features={name: features[name] for name in inputs},
        output_features={ACTION: PolicyFeature(FeatureType.ACTION, (6,))},
        normalization_mapping={kind: NormalizationMode(mode) for kind in ("VISUAL", "STATE", "ENV", "ACTION")},
        pretrained_backbone_weights=None,
        device="cpu",
        chunk_size=20,
        n_action_steps=20,
        **small | options,
    )
    policy = ACTPolicy(config)
    for module in policy.modules():  # as if trained: frozen norms that do something
        if type(module).__name__ == "FrozenBatchNorm2d":
            module.running_var.uniform_(0.5, 2)
            module.running_mean.normal_(0, 0.1)
            module.weight.uniform_(0.5, 1)
            module.bias.normal_(0, 0.1)
    policy.save_pretrained(folder)
    for processor in processors(config, dataset_stats=statistics()):
        processor.save_pretrained(folder)


def lerobot_answer(policy_class: Any, folder: Path, observation: Observation, **more: Any) -> Floats:
    """What LeRobot's own policy and processors make of raw observations, one by one."""
    policy = policy_class.from_pretrained(folder)
    device = {"device_processor": {"device": "cpu"}}
    pre, post = processors(
        policy.config, pretrained_path=str(folder), preprocessor_overrides=device, postprocessor_overrides=device
    )
    chunks = []
    for row in range(len(observation[STATE])):
        batch: dict[str, Any] = {}
        for name, array in observation.items():
            if name == TASK:
                batch[name] = str(array[row])
            elif name.startswith(IMAGES):
                batch[name] = torch.from_numpy(array[row]).permute(2, 0, 1).float() / 255
            elif name != NOISE:
                batch[name] = torch.from_numpy(array[row])
        noise = {NOISE: torch.from_numpy(observation[NOISE][row : row + 1])} if NOISE in observation else {}
        with torch.inference_mode():
            actions = policy.predict_action_chunk(pre(batch), **noise)
            chunks.append(torch.stack([post(actions[:, index]) for index in range(actions.shape[1])], 1))
    found: Floats = torch.cat(chunks).numpy()
    return found


def compare(ours: Policy, folder: Path, policy_class: Any) -> Difference:
    observation = ours.observe(3, np.random.default_rng(5))
    scale = load(folder).unnormalise().scale
    difference = Difference.of(
        [lerobot_answer(policy_class, folder, observation)], [ours.answer(observation)], np.maximum(scale, 1e-3)
    )
    difference.require(folder.name)
    return difference


IMAGES_TOO = (FRONT, STATE, WRIST)
VARIANTS: dict[str, tuple[tuple[str, ...], str, dict[str, Any]]] = {
    "as it comes": (IMAGES_TOO, "MEAN_STD", {}),
    "state alone": ((STATE, "observation.environment_state"), "MEAN_STD", {}),
    "everything": ((*IMAGES_TOO, "observation.environment_state"), "MEAN_STD", {}),
    "min, max": (IMAGES_TOO, "MIN_MAX", {}),
    "quantiles": (IMAGES_TOO, "QUANTILES", {}),
    "inner quantiles": (IMAGES_TOO, "QUANTILE10", {}),
    "nothing scaled": (IMAGES_TOO, "IDENTITY", {}),
    "norms first": (IMAGES_TOO, "MEAN_STD", {"pre_norm": True}),
    "gelu": (IMAGES_TOO, "MEAN_STD", {"feedforward_activation": "gelu"}),
    "no VAE": (IMAGES_TOO, "MEAN_STD", {"use_vae": False}),
    "three decoder layers": (IMAGES_TOO, "MEAN_STD", {"n_decoder_layers": 3}),
    "ResNet-34": (IMAGES_TOO, "MEAN_STD", {"vision_backbone": "resnet34"}),
    "ResNet-50, dilated": (
        IMAGES_TOO,
        "MEAN_STD",
        {"vision_backbone": "resnet50", "replace_final_stride_with_dilation": True},
    ),
}


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_act(variant: tuple[tuple[str, ...], str, dict[str, Any]], tmp_path: Path) -> None:
    from lerobot.policies.act.modeling_act import ACTPolicy

    inputs, mode, options = variant
    save_act(tmp_path / "act", inputs, mode, **options)
    compare(build(load(tmp_path / "act"), None), tmp_path / "act", ACTPolicy)


@pytest.mark.parametrize("name", ["act_so101_pick_place", "act_so101_cubes", "act_random"])
def test_stored_act(name: str) -> None:
    from lerobot.policies.act.modeling_act import ACTPolicy

    compare(build(load(folder_of(name)), None), folder_of(name), ACTPolicy)


@pytest.fixture
def right_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers 4.57 gives float32 models patch positions 0, 0, 1, …, n-2; others, and bfloat16, the right ones."""
    from transformers.models.smolvlm.modeling_smolvlm import SmolVLMVisionEmbeddings

    def forward(self: Any, pixel_values: torch.Tensor, patch_attention_mask: object = None) -> torch.Tensor:
        patches: torch.Tensor = self.patch_embedding(pixel_values).flatten(2).transpose(1, 2)
        return patches + self.position_embedding.weight

    monkeypatch.setattr(SmolVLMVisionEmbeddings, "forward", forward)


@pytest.mark.parametrize("special", [False, True], ids=["plain", "image tokens"])
def test_smolvla(
    special: bool, copy: Callable[[str], Path], right_patches: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy

    from tests.policy_server.export.conftest import edit

    folder = copy("smolvla_tiny")
    edit(folder / "config.json", add_image_special_tokens=special)
    monkeypatch.chdir(SMALL)  # the checkpoint names its language model by a path from there
    compare(build(load(folder), SMALL / "smolvla_tiny" / "vlm"), folder, SmolVLAPolicy)
