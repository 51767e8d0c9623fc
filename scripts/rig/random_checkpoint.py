"""A checkpoint with random weights in LeRobot's layout, of the size people train; needs torch, not LeRobot.

python -m scripts.rig.random_checkpoint --kind=act --folder=FOLDER --height=480 --width=640
python -m scripts.rig.random_checkpoint --kind=smolvla --folder=FOLDER      # SmolVLM2-500M's sizes: 1.6 GB
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import save_file

from scripts.rig.bench import start

SMALL = Path(__file__).parents[2] / "tests" / "checkpoints"
Shapes = Iterator[tuple[str, tuple[int, ...]]]


def linear(name: str, inputs: int, outputs: int, bias: bool = True) -> Shapes:
    yield f"{name}.weight", (outputs, inputs)
    if bias:
        yield f"{name}.bias", (outputs,)


def norm(name: str, width: int) -> Shapes:
    yield f"{name}.weight", (width,)
    yield f"{name}.bias", (width,)


def resnet18(name: str) -> Shapes:
    def convolution(path: str, bn: str, inputs: int, outputs: int, size: int) -> Shapes:
        yield f"{name}.{path}.weight", (outputs, inputs, size, size)
        for part in ("weight", "bias", "running_mean", "running_var"):
            yield f"{name}.{bn}.{part}", (outputs,)

    yield from convolution("conv1", "bn1", 3, 64, 7)
    for number, (inputs, width) in enumerate(((64, 64), (64, 128), (128, 256), (256, 512)), start=1):
        for block in range(2):
            path = f"layer{number}.{block}"
            yield from convolution(f"{path}.conv1", f"{path}.bn1", width if block else inputs, width, 3)
            yield from convolution(f"{path}.conv2", f"{path}.bn2", width, width, 3)
            if number > 1 and not block:
                yield from convolution(f"{path}.downsample.0", f"{path}.downsample.1", inputs, width, 1)


def act(width: int = 512, hidden: int = 3200, chunk: int = 100) -> Shapes:
    def layer(name: str, attentions: tuple[str, ...]) -> Shapes:
        for attention in attentions:
            yield f"{name}.{attention}.in_proj_weight", (3 * width, width)
            yield f"{name}.{attention}.in_proj_bias", (3 * width,)
            yield from linear(f"{name}.{attention}.out_proj", width, width)
        yield from linear(f"{name}.linear1", width, hidden)
        yield from linear(f"{name}.linear2", hidden, width)
        for number in range(len(attentions) + 1):
            yield from norm(f"{name}.norm{number + 1}", width)

    yield from resnet18("model.backbone")
    for number in range(4):
        yield from layer(f"model.encoder.layers.{number}", ("self_attn",))
    yield from layer("model.decoder.layers.0", ("self_attn", "multihead_attn"))
    yield from norm("model.decoder.norm", width)
    yield "model.decoder_pos_embed.weight", (chunk, width)
    yield "model.encoder_1d_feature_pos_embed.weight", (2, width)
    yield "model.encoder_img_feat_input_proj.weight", (width, 512, 1, 1)
    yield "model.encoder_img_feat_input_proj.bias", (width,)
    yield from linear("model.encoder_latent_input_proj", 32, width)
    yield from linear("model.encoder_robot_state_input_proj", 6, width)
    yield from linear("model.action_head", width, 6)


def smolvla() -> Shapes:
    text, expert, head, heads, kv = 960, 720, 64, 15, 5
    vlm, lm_expert = "model.vlm_with_expert.vlm", "model.vlm_with_expert.lm_expert"

    def layer(name: str, width: int, hidden: int, source: int) -> Shapes:
        yield f"{name}.input_layernorm.weight", (width,)
        yield f"{name}.post_attention_layernorm.weight", (width,)
        yield from linear(f"{name}.self_attn.q_proj", width, heads * head, bias=False)
        yield from linear(f"{name}.self_attn.k_proj", source, kv * head, bias=False)
        yield from linear(f"{name}.self_attn.v_proj", source, kv * head, bias=False)
        yield from linear(f"{name}.self_attn.o_proj", heads * head, width, bias=False)
        yield from linear(f"{name}.mlp.gate_proj", width, hidden, bias=False)
        yield from linear(f"{name}.mlp.up_proj", width, hidden, bias=False)
        yield from linear(f"{name}.mlp.down_proj", hidden, width, bias=False)

    vision = f"{vlm}.model.vision_model"
    yield f"{vision}.embeddings.patch_embedding.weight", (768, 3, 16, 16)
    yield f"{vision}.embeddings.patch_embedding.bias", (768,)
    yield f"{vision}.embeddings.position_embedding.weight", (32 * 32, 768)
    for number in range(12):
        path = f"{vision}.encoder.layers.{number}"
        yield from norm(f"{path}.layer_norm1", 768)
        yield from norm(f"{path}.layer_norm2", 768)
        for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield from linear(f"{path}.self_attn.{projection}", 768, 768)
        yield from linear(f"{path}.mlp.fc1", 768, 3072)
        yield from linear(f"{path}.mlp.fc2", 3072, 768)
    yield from norm(f"{vision}.post_layernorm", 768)
    yield from linear(f"{vlm}.model.connector.modality_projection.proj", 16 * 768, text, bias=False)
    yield f"{vlm}.model.text_model.embed_tokens.weight", (49280, text)
    for number in range(16):
        yield from layer(f"{vlm}.model.text_model.layers.{number}", text, 2560, text)
        yield from layer(f"{lm_expert}.layers.{number}", expert, 2048, kv * head if number % 2 else expert)
    yield f"{vlm}.model.text_model.norm.weight", (text,)
    yield f"{lm_expert}.norm.weight", (expert,)
    yield from linear("model.state_proj", 32, text)
    yield from linear("model.action_in_proj", 32, expert)
    yield from linear("model.action_out_proj", expert, 32)
    yield from linear("model.action_time_mlp_in", 2 * expert, expert)
    yield from linear("model.action_time_mlp_out", expert, expert)


def pi0(text: int = 1024, hidden: int = 8192, expert: int = 512, layers: int = 16, vision: int = 8) -> Shapes:
    """By default 2.8 GB: about a fifth of the published one, with its heads and its vision tower's widths."""
    root = "model.paligemma_with_expert."

    def layer(name: str, width: int, hidden: int) -> Shapes:
        yield f"{name}.input_layernorm.weight", (width,)
        yield f"{name}.post_attention_layernorm.weight", (width,)
        for projection, inputs, outputs in (
            ("q", width, 2048),
            ("k", width, 256),
            ("v", width, 256),
            ("o", 2048, width),
        ):
            yield from linear(f"{name}.self_attn.{projection}_proj", inputs, outputs, bias=False)
        for projection, inputs, outputs in (("gate", width, hidden), ("up", width, hidden), ("down", hidden, width)):
            yield from linear(f"{name}.mlp.{projection}_proj", inputs, outputs, bias=False)

    tower = f"{root}paligemma.model.vision_tower.vision_model"
    yield f"{tower}.embeddings.patch_embedding.weight", (1152, 3, 14, 14)
    yield f"{tower}.embeddings.patch_embedding.bias", (1152,)
    yield f"{tower}.embeddings.position_embedding.weight", (16, 1152)
    for number in range(vision):
        path = f"{tower}.encoder.layers.{number}"
        yield from norm(f"{path}.layer_norm1", 1152)
        yield from norm(f"{path}.layer_norm2", 1152)
        for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield from linear(f"{path}.self_attn.{projection}", 1152, 1152)
        yield from linear(f"{path}.mlp.fc1", 1152, 4304)
        yield from linear(f"{path}.mlp.fc2", 4304, 1152)
    yield from norm(f"{tower}.post_layernorm", 1152)
    yield from linear(f"{root}paligemma.model.multi_modal_projector.linear", 1152, text)
    yield f"{root}paligemma.model.language_model.embed_tokens.weight", (8192, text)
    yield f"{root}paligemma.model.language_model.norm.weight", (text,)
    yield f"{root}gemma_expert.model.norm.weight", (expert,)
    for number in range(layers):
        yield from layer(f"{root}paligemma.model.language_model.layers.{number}", text, hidden)
        yield from layer(f"{root}gemma_expert.model.layers.{number}", expert, 2048)
    for name, inputs, outputs in (
        *(("state_proj", 32, expert), ("action_in_proj", 32, expert), ("action_out_proj", expert, 32)),
        *(("action_time_mlp_in", 2 * expert, expert), ("action_time_mlp_out", expert, expert)),
    ):
        yield from linear(f"model.{name}", inputs, outputs)


def weight(name: str, shape: tuple[int, ...], random: torch.Generator) -> torch.Tensor:
    """What keeps activations near 1 through the layers."""
    if "gemma" in name and len(shape) == 1 and "vision" not in name and "projector" not in name:
        return 0.1 * torch.rand(shape, generator=random)  # Gemma multiplies by one plus its norms
    if name.endswith("running_var") or (name.endswith("weight") and len(shape) == 1):
        return 1 + 0.1 * torch.rand(shape, generator=random)
    spread = 0.02 if len(shape) == 1 or "embed" in name else math.prod(shape[1:]) ** -0.5
    return torch.randn(shape, generator=random) * spread


def write(kind: str, folder: Path, height: int = 480, width: int = 640) -> None:
    """The checkpoint's files in `folder`, after a small checkpoint in the repository; a tokenizer in `lm`.

    PI0 sees 56 pixels a side and takes two steps, so that its weights are large and its export is not slow.
    """
    source = SMALL / ("act_so101_pick_place" if kind == "act" else "smolvla_tiny/checkpoint")
    folder.mkdir(parents=True)
    random = torch.Generator().manual_seed(0)
    shapes = {"act": act, "smolvla": smolvla, "pi0": pi0}[kind]()
    save_file({name: weight(name, shape, random) for name, shape in shapes}, folder / "model.safetensors")

    image = {"type": "VISUAL", "shape": [3, height, width]}
    inputs = {
        "observation.state": {"type": "STATE", "shape": [6]},
        "observation.images.front": image,
        "observation.images.wrist": image,
    }
    config = json.loads((source / "config.json").read_text()) | {"input_features": inputs}
    if kind == "act":
        config |= {"dim_model": 512, "n_heads": 8, "dim_feedforward": 3200, "n_encoder_layers": 4, "chunk_size": 100}
        config["normalization_mapping"] |= {"VISUAL": "IDENTITY"}
    elif kind == "pi0":
        config |= {"type": "pi0", "image_resolution": [56, 56], "num_inference_steps": 2, "dtype": "float32"}
    else:
        config |= {"resize_imgs_with_padding": [512, 512], "num_vlm_layers": 16}
        config["vlm_model_name"] = "HuggingFaceTB/SmolVLM2-500M-Video-Instruct"
    if kind != "act":
        (folder / "lm").mkdir()
        shutil.copy(source.parent / "vlm" / "tokenizer.json", folder / "lm")
    (folder / "config.json").write_text(json.dumps(config, indent=4))
    for path in source.glob("policy_*"):
        if path.suffix == ".json":
            pipeline = json.loads(path.read_text())
            for step in pipeline["steps"]:
                if kind == "pi0":
                    step["registry_name"] = step["registry_name"].replace("smolvla_new_line", "pi0_new_line")
                if step["registry_name"] == "normalizer_processor":
                    step["config"] |= {"features": inputs, "norm_map": config["normalization_mapping"]}
            (folder / path.name).write_text(json.dumps(pipeline))
        else:
            shutil.copy(path, folder)


@dataclass
class CheckpointConfig:
    """A checkpoint with random weights."""

    kind: Literal["act", "smolvla", "pi0"]
    folder: Path  # is made
    height: int = 480  # of the cameras
    width: int = 640


def main(config: CheckpointConfig) -> None:
    write(config.kind, config.folder, config.height, config.width)


if __name__ == "__main__":
    start(CheckpointConfig, main)
