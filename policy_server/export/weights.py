"""A checkpoint's tensors, read from safetensors and from nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from edge_runtime.errors import ModelError
from edge_runtime.program import files

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of `folder`: one, or the shards its index names. Raises ModelError when there are none."""
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if (folder / INDEX).is_file():
        try:
            shards = sorted(set(files.read_json(folder / INDEX)["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ModelError(f"{INDEX}: no weight_map that names the shards ({error})") from error
        for shard in shards:
            if not isinstance(shard, str) or Path(shard).name != shard or not (folder / shard).is_file():
                raise ModelError(f"{INDEX}: the shard {shard} is not in {folder.name}")
        return [folder / shard for shard in shards]
    pickled = sorted(path.name for pattern in PICKLED for path in folder.glob(pattern))
    if pickled:
        raise ModelError(f"{pickled[0]}: pickled weights are never loaded; save the policy as {SINGLE} with LeRobot")
    raise ModelError(f"{folder.name}: it holds no weights; expected {SINGLE} or {INDEX}")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of one safetensors file, floats as float32. Raises ModelError when it is damaged."""
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path.name}: not a whole safetensors file ({error})") from error
    return {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Every tensor of the checkpoint in `folder`. Raises ModelError when one comes twice."""
    tensors: dict[str, Tensor] = {}
    for path in weight_files(folder):
        part = read_tensors(path)
        if twice := sorted(tensors.keys() & part.keys()):
            raise ModelError(f"{path.name}: {twice[0]} is in another shard too")
        tensors |= part
    return tensors


def digest(paths: list[Path]) -> str:
    """SHA-256 in hex over the files' bytes, in the order given. Raises ModelError for one that cannot be read."""
    total = hashlib.sha256()
    for path in paths:
        try:
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    total.update(block)
        except OSError as error:
            raise ModelError(f"{path.name}: cannot be read: {error.strerror or error}") from error
    return total.hexdigest()


def load_strictly(module: nn.Module, tensors: Mapping[str, Tensor], prefix: str, unused: Sequence[str]) -> None:
    """Fill `module` and set it to inference: every tensor under `prefix` must have its place, or start as one `unused`.

    Raises ModelError, naming the first tensor that is missing, left over or of another shape.
    """
    given = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    given = {name: tensor for name, tensor in given.items() if not name.startswith(tuple(unused))}
    wanted = module.state_dict()
    for problem, names in (("lack", wanted.keys() - given.keys()), ("hold unknown", given.keys() - wanted.keys())):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise ModelError(f"the weights {problem} {prefix}{min(names)}{more}; does config.json belong to them?")
    for name, tensor in wanted.items():
        if given[name].shape != tensor.shape:
            shapes = f"{list(given[name].shape)}, expected {list(tensor.shape)}"
            raise ModelError(f"the weights' {prefix}{name} has the shape {shapes}; does config.json belong to them?")
        if not torch.isfinite(given[name]).all():
            raise ModelError(f"the weights' {prefix}{name} is not finite; the training diverged")
    module.load_state_dict(given, assign=True)
    module.eval().requires_grad_(False)
