"""Every layout in which LeRobot has stored a policy gives the same policy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from edge_runtime.errors import ConfigError, ModelError
from edge_runtime.wire.messages import Floats
from policy_server.engines.checkpoint_folder import locate
from policy_server.export.checkpoint import load
from policy_server.export.parity import Observation
from policy_server.export.policies import Policy, build
from policy_server.export.statistics import from_file
from tests.policy_server.export import layouts
from tests.policy_server.export.conftest import edit, edit_step, folder_of

pytestmark = pytest.mark.export
Copy = Callable[[str], Path]
SMALL = ("act_so101_pick_place", "smolvla_tiny")


def policy_of(folder: Path, **options: object) -> Policy:
    language_model = folder.parent / "vlm"
    return build(load(folder, **options), language_model if language_model.is_dir() else None)  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=SMALL)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def known(name: str) -> tuple[Observation, Floats]:
    """An observation, and the actions of the checkpoint as it is stored."""
    policy = policy_of(folder_of(name))
    observation = policy.observe(2, np.random.default_rng(0))
    return observation, policy.answer(observation)


def test_0_3_keeps_statistics_among_the_weights(name: str, known: tuple[Observation, Floats], copy: Copy) -> None:
    layouts.to_0_3(folder := copy(name))
    np.testing.assert_array_equal(policy_of(folder).answer(known[0]), known[1])


def test_0_3_behind_the_name_of_one_data_set(name: str, known: tuple[Observation, Floats], copy: Copy) -> None:
    layouts.to_0_3(folder := copy(name), sets=("so100-red",))
    np.testing.assert_array_equal(policy_of(folder).answer(known[0]), known[1])


def test_sharded(name: str, known: tuple[Observation, Floats], copy: Copy) -> None:
    layouts.to_shards(folder := copy(name))
    np.testing.assert_array_equal(policy_of(folder).answer(known[0]), known[1])


def test_statistics_of_the_users_own(name: str, known: tuple[Observation, Floats], copy: Copy) -> None:
    folder = copy(name)
    layouts.to_dataset_statistics(folder, folder / "stats.json")
    with pytest.raises(ModelError, match="give --stats FILE"):
        policy_of(folder)
    policy = policy_of(folder, statistics=from_file(folder / "stats.json"))
    np.testing.assert_array_equal(policy.answer(known[0]), known[1])


def test_two_data_sets_need_the_users_word(name: str, copy: Copy) -> None:
    layouts.to_0_3(folder := copy(name), sets=("so100", "so101"))
    with pytest.raises(ModelError, match=r"several data sets \(so100, so101\)"):
        policy_of(folder)


def test_0_3_widens_every_range(copy: Copy) -> None:
    folder = copy("act_so101_pick_place")
    edit(folder / "config.json", normalization_mapping=dict.fromkeys(("STATE", "ENV", "ACTION"), "MIN_MAX"))
    layouts.to_0_3(folder)
    assert load(folder).normalisation.rule.widen_every_range


def test_renamed_inputs_are_asked_for_by_the_robots_names(
    name: str, known: tuple[Observation, Floats], copy: Copy
) -> None:
    folder = copy(name)
    inside = list(known[0])[1]
    edit_step(
        folder,
        "policy_preprocessor.json",
        "rename_observations_processor",
        rename_map={"observation.images.top": inside},
    )
    policy = policy_of(folder)
    assert policy.inputs[1] == "observation.images.top"
    renamed = {"observation.images.top" if key == inside else key: array for key, array in known[0].items()}
    np.testing.assert_array_equal(policy.answer(renamed), known[1])


def test_the_order_of_the_inputs_in_the_configuration_means_nothing(
    name: str, known: tuple[Observation, Floats], copy: Copy
) -> None:
    folder = copy(name)
    features = json.loads((folder / "config.json").read_text())["input_features"]
    numbers = [key for key, feature in features.items() if feature["type"] != "VISUAL"]  # cameras have an order
    cameras = [key for key in features if key not in numbers]
    edit(folder / "config.json", input_features={key: features[key] for key in (*cameras, *reversed(numbers))})
    np.testing.assert_array_equal(policy_of(folder).answer(known[0]), known[1])


def test_main_keeps_the_tokenizer_in_the_checkpoint(copy: Copy) -> None:
    known = policy_of(folder_of("smolvla_tiny"))
    observation = known.observe(1, np.random.default_rng(0))
    folder = copy("smolvla_tiny")
    layouts.to_main(folder, folder.parent / "vlm")
    np.testing.assert_array_equal(build(load(folder), None).answer(observation), known.answer(observation))


def test_the_tokenizer_and_the_checkpoint_may_be_in_the_hugging_face_cache(
    copy: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy("smolvla_tiny")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    for repository, source in (("someone/policy", folder), ("smolvla_tiny/vlm", folder.parent / "vlm")):
        place = tmp_path / "hub" / f"models--{repository.replace('/', '--')}"
        (place / "snapshots").mkdir(parents=True)
        (place / "refs").mkdir()
        (place / "refs" / "main").write_text("0123abc")
        source.rename(place / "snapshots" / "0123abc")
    assert build(load(locate("someone/policy")), None).uses_task


def test_without_a_tokenizer_the_user_is_told_what_to_give(
    copy: Copy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "empty"))
    with pytest.raises(ConfigError, match="give --tokenizer DIR"):
        build(load(copy("smolvla_tiny")), None)


def test_a_compiled_policy_has_other_names(copy: Copy) -> None:
    folder = copy("smolvla_tiny")
    weights = load_file(folder / "model.safetensors")
    save_file(
        {name.replace("model.", "model._orig_mod.", 1): t for name, t in weights.items()}, folder / "model.safetensors"
    )
    assert policy_of(folder).uses_task


def test_bfloat16_weights_are_computed_in_float32(copy: Copy) -> None:
    folder = copy("smolvla_tiny")
    weights = {name: tensor.bfloat16() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors")
    policy = policy_of(folder)
    assert {parameter.dtype for parameter in policy.module.parameters()} == {torch.float32}
    assert np.isfinite(policy.answer(policy.observe(1, np.random.default_rng(0)))).all()


def test_empty_cameras_are_left_out_and_change_nothing(copy: Copy) -> None:
    known = policy_of(folder_of("smolvla_tiny"))
    observation = known.observe(1, np.random.default_rng(0))
    folder = copy("smolvla_tiny")
    config = json.loads((folder / "config.json").read_text())
    empty = {"observation.images.empty_camera_0": {"type": "VISUAL", "shape": [3, 480, 640]}}
    edit(folder / "config.json", empty_cameras=1, input_features=config["input_features"] | empty)
    policy = policy_of(folder)
    assert policy.inputs == known.inputs
    np.testing.assert_array_equal(policy.answer(observation), known.answer(observation))
