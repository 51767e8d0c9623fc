"""LeRobot's other checkpoint layouts, made in place from a folder that 0.4.4 wrote."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

PROCESSORS = ("policy_preprocessor", "policy_postprocessor")


def statistics(folder: Path, processor: str) -> Path:
    """The file that the processor's step names."""
    steps = json.loads((folder / f"{processor}.json").read_text())["steps"]
    return folder / next(step["state_file"] for step in steps if "state_file" in step)


def to_0_3(
    folder: Path, sets: tuple[str, ...] = ("",), change: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> None:
    """Statistics among the weights, once for each of `sets` (`so100` -> `normalize_inputs.so100_buffer_…`)."""
    weights = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    modules = {
        "normalize_inputs": ("policy_preprocessor", config["input_features"]),
        "normalize_targets": ("policy_preprocessor", config["output_features"]),
        "unnormalize_outputs": ("policy_postprocessor", config["output_features"]),
    }
    for module, (processor, features) in modules.items():
        stored = load_file(statistics(folder, processor))
        for key, tensor in stored.items():
            feature, _, name = key.rpartition(".")
            mode = config["normalization_mapping"].get(features.get(feature, {}).get("type"), "IDENTITY")
            if mode == "IDENTITY" or name not in ("mean", "std", "min", "max"):
                continue
            for label in sets:
                prefix = f"{label}_" if label else ""
                value = change(tensor) if change else tensor
                weights[f"{module}.{prefix}buffer_{feature.replace('.', '_')}.{name}"] = value.clone()
    for processor in PROCESSORS:
        statistics(folder, processor).unlink()
        (folder / f"{processor}.json").unlink()
    save_file(weights, folder / "model.safetensors")


def to_shards(folder: Path, count: int = 3) -> None:
    """Weights in several files, with an index."""
    weights = load_file(folder / "model.safetensors")
    names = sorted(weights)
    where = {}
    for number in range(count):
        file = f"model-{number + 1:05}-of-{count:05}.safetensors"
        part = names[number::count]
        save_file({name: weights[name] for name in part}, folder / file)
        where |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    (folder / "model.safetensors").unlink()


def to_main(folder: Path, language_model: Path) -> None:
    """The tokenizer's files inside the checkpoint, named by the step; their order and the numbers differ too."""
    shutil.copytree(language_model, folder / "policy_preprocessor_step_1_tokenizer_processor")
    path = folder / "policy_preprocessor.json"
    pipeline = json.loads(path.read_text())
    steps = {step["registry_name"]: step for step in pipeline["steps"]}
    steps["tokenizer_processor"]["artifacts"] = {"tokenizer": "policy_preprocessor_step_1_tokenizer_processor"}
    del steps["tokenizer_processor"]["config"]["tokenizer_name"]
    switched_off = {"registry_name": "relative_actions_processor", "config": {"enabled": False}}
    order = ("rename_observations_processor", "smolvla_new_line_processor", "tokenizer_processor", "to_batch_processor")
    rest = [step for name, step in steps.items() if name not in order]
    pipeline["steps"] = [*(steps[name] for name in order), switched_off, *rest]
    old, new = (
        statistics(folder, "policy_preprocessor"),
        folder / "policy_preprocessor_step_6_normalizer_processor.safetensors",
    )
    old.rename(new)
    steps["normalizer_processor"]["state_file"] = new.name
    path.write_text(json.dumps(pipeline))


def to_dataset_statistics(folder: Path, path: Path) -> None:
    """A data set's `meta/stats.json` with the checkpoint's numbers, and none in the checkpoint itself."""
    table: dict[str, dict[str, object]] = {}
    for key, tensor in load_file(statistics(folder, "policy_preprocessor")).items():
        feature, _, name = key.rpartition(".")
        table.setdefault(feature, {"count": [100]})[name] = tensor.tolist()
    path.write_text(json.dumps(table))
    for processor in PROCESSORS:
        pipeline = json.loads((folder / f"{processor}.json").read_text())
        for step in pipeline["steps"]:
            if "state_file" in step:
                (folder / step.pop("state_file")).unlink()
        (folder / f"{processor}.json").write_text(json.dumps(pipeline))
