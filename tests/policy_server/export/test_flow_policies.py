"""PI0, PI0.5 and Diffusion Policy in torch, where LeRobot's outputs show a choice that no graph has."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from torch import zeros

from edge_runtime.errors import ConfigError, ModelError
from policy_server.bundle import IMAGES
from policy_server.export.checkpoint import load
from policy_server.export.parity import MAX_NORMALISED, cases
from policy_server.export.policies import Policy, build
from policy_server.export.reference import find, stored
from policy_server.export.statistics import from_weights
from tests.policy_server.export.conftest import edit, folder_of

pytestmark = pytest.mark.export
Copy = Callable[[str], Path]
DDIM = "diffusion_tiny/ddim"


def gap(policy: Policy, folder: Path, observation: dict[str, Any], actions: Any) -> float:
    """The largest difference in normalised units, row by row and in a batch of three."""
    scale = load(folder).unnormalise().scale
    pairs = zip(cases(observation), cases({"action": actions}), strict=True)
    return max(float((np.abs(policy.answer(case) - pair["action"]) / scale).max()) for case, pair in pairs)


def reference(folder: Path, beside: Path, policy: Policy) -> dict[str, Any]:
    """LeRobot's inputs, which lie beside the checkpoint they were copied from."""
    [known, *_] = find(replace(load(folder), folder=beside), policy)
    return dict(known.observation)


@pytest.mark.parametrize("kind", ["pi0", "pi05"])
def test_an_empty_camera_is_left_out(kind: str, copy: Copy, tmp_path: Path) -> None:
    original = folder_of(f"{kind}_tiny")
    folder = copy(f"{kind}_tiny")
    features = load(original).config["input_features"]
    features["observation.images.empty_camera_0"] = features.pop("observation.images.wrist")
    edit(folder / "config.json", input_features=features, empty_cameras=1)
    normaliser = "policy_preprocessor.json"
    (folder / normaliser).write_text((folder / normaliser).read_text().replace("images.wrist", "images.empty_camera_0"))
    policy = build(load(folder), tmp_path / "tokenizer")
    assert policy.inputs == ("observation.state", "observation.images.front")
    observation = {name: array[:1] for name, array in reference(original, original, _whole(kind)).items()}
    expected = stored(original.parent / "reference.npz")["actions_without_wrist"]
    assert gap(policy, folder, observation, expected) <= MAX_NORMALISED


def _whole(kind: str) -> Policy:
    folder = folder_of(f"{kind}_tiny")
    return build(load(folder), folder.parent / "tokenizer")


@pytest.mark.parametrize("kind", ["pi0", "pi05"])
def test_names_that_lerobots_loader_forgives(kind: str, copy: Copy, tmp_path: Path) -> None:
    folder = copy(f"{kind}_tiny")
    tensors = load_file(folder / "model.safetensors")
    embedding = "model.paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"
    tensors["model.paligemma_with_expert.paligemma.lm_head.weight"] = tensors.pop(embedding)
    swapped = ("action_time_mlp_", "time_mlp_") if kind == "pi0" else ("time_mlp_", "action_time_mlp_")
    short = {name.removeprefix("model.").replace(*swapped): tensor for name, tensor in tensors.items()}
    save_file(short, folder / "model.safetensors")
    policy, whole = build(load(folder), tmp_path / "tokenizer"), _whole(kind)
    observation = whole.observe(2, np.random.default_rng(0))
    np.testing.assert_array_equal(policy.answer(observation), whole.answer(observation))


def test_only_the_user_knows_what_an_old_pi05_read(copy: Copy, tmp_path: Path) -> None:
    folder = copy("pi05_tiny")
    pipeline = json.loads((folder / "policy_preprocessor.json").read_text())
    pipeline["steps"] = [step for step in pipeline["steps"] if "relative" not in step["registry_name"]]
    (folder / "policy_preprocessor.json").write_text(json.dumps(pipeline))
    with pytest.raises(ConfigError, match=r"state_numbers: LeRobot 0\.4 wrote 32 .* --state_numbers=6"):
        build(load(folder), tmp_path / "tokenizer")
    with pytest.raises(ConfigError, match="state_numbers: 7 is not 6"):
        build(load(folder), tmp_path / "tokenizer", 7)
    policy = build(load(folder), tmp_path / "tokenizer", 32)
    assert policy.state_text is not None
    assert policy.state_text.numbers == 32


def test_fewer_steps_of_ddpm_than_it_was_trained_with(copy: Copy) -> None:
    original, folder = folder_of("diffusion_tiny/ddpm"), copy("diffusion_tiny/ddpm")
    edit(folder / "config.json", num_inference_steps=10)
    policy = build(load(folder), None)
    arrays = stored(original / "reference.npz")
    observation = reference(original, original, build(load(original), None))
    noise = np.moveaxis(arrays["step_noise_steps10"], 0, 1)
    observation["step_noise"] = np.concatenate((noise, np.ones_like(noise[:, :1])), 1)  # the last step adds none
    assert policy.steps == 10
    assert gap(policy, folder, observation, arrays["actions_steps10"]) <= MAX_NORMALISED


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a horizon that cannot be halved": ({"horizon": 18}, "horizon: 18 cannot be halved 2 times"),
    "actions beyond the horizon": ({"n_action_steps": 16}, "do not fit the horizon 16"),
    "a crop beyond the picture": ({"resize_shape": None, "crop_shape": [200, 300]}, "crop_shape: 300x200 is larger"),
    "another scheduler": ({"noise_scheduler_type": "PNDM"}, "noise_scheduler_type: PNDM is not supported"),
    "another prediction": ({"prediction_type": "v_prediction"}, "prediction_type: v_prediction is not supported"),
    "another schedule": ({"beta_schedule": "sigmoid"}, "beta_schedule: sigmoid is not supported"),
    "more steps than in training": ({"num_inference_steps": 101}, "num_inference_steps: 101 is not a number of steps"),
    "another backbone": ({"vision_backbone": "vit"}, "vision_backbone: vit is not supported"),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED)
def test_what_diffusion_policy_has_not_is_refused(changes: dict[str, Any], message: str, copy: Copy) -> None:
    folder = copy(DDIM)
    edit(folder / "config.json", **changes)
    with pytest.raises(ModelError, match=message):
        build(load(folder), None)


def test_a_picture_that_is_no_square_is_refused(copy: Copy, tmp_path: Path) -> None:
    folder = copy("pi0_tiny")
    edit(folder / "config.json", image_resolution=[224, 112])
    with pytest.raises(ModelError, match=r"image_resolution: .* is not a square"):
        build(load(folder), tmp_path / "tokenizer")


@pytest.mark.parametrize("kind", ["smolvla_tiny", "pi0_tiny"])
def test_a_camera_that_the_training_never_had_is_left_out(kind: str, tmp_path: Path) -> None:
    folder = folder_of(kind)
    whole = load(folder)
    names = [whole.outside(camera).removeprefix(IMAGES) for camera in whole.of_type("VISUAL")]
    kept = load(folder, cameras=names[:1])
    assert [kept.outside(camera).removeprefix(IMAGES) for camera in kept.of_type("VISUAL")] == names[:1]
    with pytest.raises(ConfigError, match="cameras: no_such is not a camera of this policy"):
        load(folder, cameras=["no_such"])


def test_a_policy_that_needs_all_its_cameras_says_so() -> None:
    with pytest.raises(ConfigError, match="cameras: diffusion cannot do without"):
        load(folder_of(DDIM), cameras=[load(folder_of(DDIM)).of_type("VISUAL")[0].name.removeprefix(IMAGES)])


def test_a_camera_that_the_statistics_do_not_know_is_named(copy: Copy) -> None:
    folder = copy("smolvla_tiny")
    config = json.loads((folder / "config.json").read_text())
    inputs = config["input_features"]
    first = next(feature for feature in inputs.values() if feature["type"] == "VISUAL")
    edit(folder / "config.json", input_features=inputs | {"observation.images.never": first})
    statistics = folder / next(path.name for path in folder.glob("policy_preprocessor_step_*.safetensors"))
    known = load_file(statistics)
    known |= {f"{name}.mean": known[next(iter(known))].clone() for name, f in inputs.items() if f["type"] == "VISUAL"}
    save_file(known, statistics)
    assert load(folder).unknown_cameras == ["never"]


@pytest.mark.parametrize("buffer", [".buffer.observation.", ".buffer_observation_", "_buffer_observation_"])
def test_the_data_sets_of_several_statistics_are_named(buffer: str) -> None:
    tensors = {f"normalize_inputs.{each}.mean": zeros(6) for each in (f"so100{buffer}state", f"koch{buffer}state")}
    with pytest.raises(ModelError, match=r"several data sets \(koch, so100\).*--stats"):
        from_weights(tensors, {}, ["observation.state", "action"], False)


@pytest.mark.parametrize("name", ["resize_shape", "crop_shape"])
def test_a_setting_of_a_fork_that_changes_the_picture_is_refused(copy: Copy, name: str) -> None:
    folder = copy("smolvla_tiny")
    edit(folder / "config.json", **{name: [224, 224]})
    with pytest.raises(ModelError, match=rf"{name}: \[224, 224\] changes the picture"):
        load(folder)
