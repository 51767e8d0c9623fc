"""The sizes of the vision-language model in a SmolVLA: most lie in the weights' shapes, a few only in its config."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from edge_runtime.errors import ModelError
from edge_runtime.program import files

PUBLISHED: Mapping[str, Mapping[str, Any]] = {  # what config.json of the model says, where it is not at hand
    "HuggingFaceTB/SmolVLM2-500M-Video-Instruct": {
        "text_config": {"head_dim": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu"},
        "vision_config": {"num_attention_heads": 12, "layer_norm_eps": 1e-6, "hidden_act": "gelu_pytorch_tanh"},
    },
}
ACTIVATIONS = {"text_config": "silu", "vision_config": "gelu_pytorch_tanh"}


@dataclass(frozen=True)
class VlmSizes:
    """`shuffle` patches a side become one token; `table_side` patches a side have learned positions."""

    text_width: int
    text_hidden: int
    text_layers: int
    text_epsilon: float
    head: int
    heads: int
    kv_heads: int
    vocabulary: int
    expert_width: int
    expert_hidden: int
    expert_layers: int
    vision_width: int
    vision_hidden: int
    vision_layers: int
    vision_heads: int
    vision_epsilon: float
    patch: int
    table_side: int
    shuffle: int


def read_config(name: str, folders: list[Path]) -> Mapping[str, Any]:
    """The language model's configuration from the first of `folders` that has one, or as published under `name`.

    Raises ModelError when there is neither, or it asks for what our modules do not do.
    """
    for folder in folders:
        if (path := folder / "config.json").is_file():
            try:
                config = files.read_json(path)
            except ValueError as error:
                raise ModelError(f"{path.name} of {folder.name}: {error}") from error
            if isinstance(config, dict) and "text_config" in config:
                return config
    if name in PUBLISHED:
        return PUBLISHED[name]
    raise ModelError(
        f"vlm_model_name: the config.json of {name} is not at hand; give the model's folder with --tokenizer"
    )


def sizes_of(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> VlmSizes:
    """Sizes from the tensors' shapes (named as `smolvla.short_names` leaves them) and `config`. Raises ModelError."""
    for part, activation in ACTIVATIONS.items():
        if (found := config.get(part, {}).get("hidden_act", activation)) != activation:
            raise ModelError(f"{part}: hidden_act {found} is not supported; expected {activation}")
    text, vision = config["text_config"], config.get("vision_config", {})

    def shape(name: str) -> tuple[int, ...]:
        if f"model.{name}" not in tensors:
            raise ModelError(f"the weights lack model.{name}; expected those of a SmolVLA")
        return tuple(tensors[f"model.{name}"].shape)

    vocabulary, text_width = shape("text.embed_tokens.weight")
    query = shape("text.layers.0.self_attn.q_proj.weight")[0]
    head = int(text.get("head_dim") or text_width // int(text["num_attention_heads"]))
    expert_width, expert_hidden = shape("expert.layers.0.mlp.down_proj.weight")
    places, vision_width = shape("vision.embeddings.position_embedding.weight")
    return VlmSizes(
        text_width=text_width,
        text_hidden=shape("text.layers.0.mlp.gate_proj.weight")[0],
        text_layers=count_layers(tensors, "model.text.layers."),
        text_epsilon=float(text.get("rms_norm_eps", 1e-5)),
        head=head,
        heads=query // head,
        kv_heads=shape("text.layers.0.self_attn.k_proj.weight")[0] // head,
        vocabulary=vocabulary,
        expert_width=expert_width,
        expert_hidden=expert_hidden,
        expert_layers=count_layers(tensors, "model.expert.layers."),
        vision_width=vision_width,
        vision_hidden=shape("vision.encoder.layers.0.mlp.fc1.weight")[0],
        vision_layers=count_layers(tensors, "model.vision.encoder.layers."),
        vision_heads=int(vision.get("num_attention_heads", 16)),
        vision_epsilon=float(vision.get("layer_norm_eps", 1e-6)),
        patch=shape("vision.embeddings.patch_embedding.weight")[-1],
        table_side=math.isqrt(places),
        shuffle=math.isqrt(shape("vision.connector.proj.weight")[1] // vision_width),
    )


def count_layers(tensors: Mapping[str, Tensor], prefix: str) -> int:
    return len({name.removeprefix(prefix).split(".")[0] for name in tensors if name.startswith(prefix)})
