"""ACT (Zhao et al. 2023, arXiv:2304.13705) as LeRobot trains it, from raw frames and joint units to joint targets."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edge_runtime.errors import ModelError
from policy_server.bundle import STATE
from policy_server.export.checkpoint import Checkpoint
from policy_server.export.letterbox import Resize
from policy_server.export.resnet import ResNet, fold_batch_norms
from policy_server.export.scaling import PixelScaling, Scaling
from policy_server.export.weights import load_strictly

ENVIRONMENT = "observation.environment_state"
NOT_FOR_INFERENCE = ("vae_encoder",)  # it reads the demonstrated actions; at inference the latent is 0
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}


class ACT(nn.Module):
    """Raw observations to an action chunk.

    `forward` takes the tensors that `inputs` names, in order: state (B, joints) and environment state (B, n) float32,
    images (B, H, W, 3) uint8 RGB; it returns (B, chunk, joints) float32 in joint units. Parameter names are the
    checkpoint's.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Build and load, strictly. Raises ModelError on what is not supported, missing or left over."""
        super().__init__()
        width = checkpoint.setting("dim_model", int)
        vectors = {feature.name: feature for feature in checkpoint.inputs if feature.type != "VISUAL"}
        if not set(vectors) <= {STATE, ENVIRONMENT}:
            raise ModelError(f"input_features: {', '.join(vectors)}; ACT takes {STATE} and {ENVIRONMENT} beside images")
        cameras = checkpoint.of_type("VISUAL")
        ordered = tuple(vectors[name] for name in (STATE, ENVIRONMENT) if name in vectors)
        self.features = ordered + cameras
        self.inputs = tuple(checkpoint.outside(feature) for feature in self.features)

        self.vector_scalings = nn.ModuleList(Scaling(checkpoint.normalise(vector)) for vector in ordered)
        self.encoder_latent_input_proj = nn.Linear(checkpoint.setting("latent_dim", int), width)
        self.encoder_robot_state_input_proj = nn.Linear(vectors[STATE].shape[0], width)
        if ENVIRONMENT in vectors:
            self.encoder_env_state_input_proj = nn.Linear(vectors[ENVIRONMENT].shape[0], width)
        self.encoder_1d_feature_pos_embed = nn.Embedding(1 + len(vectors), width)
        self.pixel_scalings = nn.ModuleList(
            PixelScaling(checkpoint.normalise(camera), Resize(*camera.shape[1:])) for camera in cameras
        )
        positions = torch.empty(0, width)
        if cameras:
            dilate = bool(checkpoint.setting("replace_final_stride_with_dilation", (int, bool)))
            self.backbone = ResNet(checkpoint.setting("vision_backbone", str), dilate)
            self.encoder_img_feat_input_proj = nn.Conv2d(self.backbone.channels, width, 1)
            sizes = [self.backbone.map_size(*camera.shape[1:]) for camera in cameras]
            positions = torch.cat([sinusoids(*size, width) for size in sizes])
        self.register_buffer("pixel_positions", positions, persistent=False)
        self.encoder = Encoder(checkpoint, width)
        self.decoder = Decoder(checkpoint, width)
        self.decoder_pos_embed = nn.Embedding(checkpoint.setting("chunk_size", int), width)
        self.action_head = nn.Linear(width, checkpoint.action.shape[0])
        self.action_scaling = Scaling(checkpoint.unnormalise())
        load_strictly(self, fold_batch_norms(checkpoint.tensors), "model.", NOT_FOR_INFERENCE)

    def forward(self, *observation: Tensor) -> Tensor:
        count = len(self.vector_scalings)
        vectors = [scaling(x) for scaling, x in zip(self.vector_scalings, observation[:count], strict=True)]
        tokens = [
            self.encoder_latent_input_proj.bias.expand(vectors[0].shape[0], -1),  # of a latent of zeros
            self.encoder_robot_state_input_proj(vectors[0]),
        ]
        if count > 1:
            tokens.append(self.encoder_env_state_input_proj(vectors[1]))
        sequence = [torch.stack(tokens, 1)]
        for scaling, frames in zip(self.pixel_scalings, observation[count:], strict=True):
            maps = self.encoder_img_feat_input_proj(self.backbone(scaling(frames)))
            sequence.append(maps.flatten(2).transpose(1, 2))
        positions = torch.cat((self.encoder_1d_feature_pos_embed.weight, self.pixel_positions))
        memory = self.encoder(torch.cat(sequence, 1), positions)
        chunk = self.decoder(self.decoder_pos_embed.weight, memory, positions)
        return self.action_scaling(self.action_head(chunk))


class Attention(nn.Module):
    """Multi-head attention with the parameter names of `torch.nn.MultiheadAttention`; batch first."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.empty(3 * width))
        self.out_proj = nn.Linear(width, width)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """(B, n, width), (B, m, width) twice -> (B, n, width)."""
        weights, biases = self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3)
        q, k, v = (
            F.linear(x, weight, bias).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for x, weight, bias in zip((query, key, value), weights, biases, strict=True)
        )
        attention = torch.softmax((q * q.shape[-1] ** -0.5) @ k.transpose(2, 3), -1)
        return self.out_proj((attention @ v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """What the encoder's and the decoder's layers share: norms before or after each part, and the feed-forward."""

    def __init__(self, checkpoint: Checkpoint, width: int, parts: int) -> None:
        super().__init__()
        hidden, activation = (
            checkpoint.setting("dim_feedforward", int),
            checkpoint.setting("feedforward_activation", str),
        )
        if activation not in ACTIVATIONS:
            raise ModelError(f"feedforward_activation: {activation}; expected {' or '.join(ACTIVATIONS)}")
        self.heads = checkpoint.setting("n_heads", int)
        self.self_attn = Attention(width, self.heads)
        self.linear1, self.linear2 = nn.Linear(width, hidden), nn.Linear(hidden, width)
        for number in range(1, parts + 1):
            self.add_module(f"norm{number}", nn.LayerNorm(width))
        self.activation = ACTIVATIONS[activation]
        self.pre_norm = checkpoint.setting("pre_norm", bool)

    def add(self, x: Tensor, norm: nn.Module, part: Callable[[Tensor], Tensor]) -> Tensor:
        """x + part(x) with the norm where the checkpoint has it."""
        return x + part(norm(x)) if self.pre_norm else norm(x + part(x))

    def feed(self, x: Tensor) -> Tensor:
        return self.linear2(self.activation(self.linear1(x)))


class EncoderLayer(Layer):
    """Self-attention, then feed-forward."""

    def __init__(self, checkpoint: Checkpoint, width: int) -> None:
        super().__init__(checkpoint, width, parts=2)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        x = self.add(x, self.norm1, lambda y: self.self_attn(y + positions, y + positions, y))
        return self.add(x, self.norm2, self.feed)


class DecoderLayer(Layer):
    """Self-attention, attention to the encoder's output, then feed-forward."""

    def __init__(self, checkpoint: Checkpoint, width: int) -> None:
        super().__init__(checkpoint, width, parts=3)
        self.multihead_attn = Attention(width, self.heads)

    def forward(self, x: Tensor, queries: Tensor, memory: Tensor, keys: Tensor) -> Tensor:
        x = self.add(x, self.norm1, lambda y: self.self_attn(y + queries, y + queries, y))
        x = self.add(x, self.norm2, lambda y: self.multihead_attn(y + queries, keys, memory))
        return self.add(x, self.norm3, self.feed)


class Encoder(nn.Module):
    def __init__(self, checkpoint: Checkpoint, width: int) -> None:
        super().__init__()
        count = checkpoint.setting("n_encoder_layers", int)
        self.layers = nn.ModuleList(EncoderLayer(checkpoint, width) for _ in range(count))
        self.norm = nn.LayerNorm(width) if checkpoint.setting("pre_norm", bool) else nn.Identity()

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, positions)
        return self.norm(x)


class Decoder(nn.Module):
    def __init__(self, checkpoint: Checkpoint, width: int) -> None:
        super().__init__()
        count = checkpoint.setting("n_decoder_layers", int)
        self.layers = nn.ModuleList(DecoderLayer(checkpoint, width) for _ in range(count))
        self.norm = nn.LayerNorm(width)

    def forward(self, queries: Tensor, memory: Tensor, positions: Tensor) -> Tensor:
        # A batch of one until the first look at the memory: what comes before is the same for every observation, so
        # that a runtime folds it into a constant.
        x = torch.zeros_like(queries).unsqueeze(0)
        for layer in self.layers:
            x = layer(x, queries, memory, memory + positions)
        return self.norm(x)


def sinusoids(rows: int, columns: int, width: int) -> Tensor:
    """(rows * columns, width): the fixed positions of DETR (arXiv:2005.12872), as in LeRobot's `modeling_act.py`."""
    half = width // 2
    frequency = 10000.0 ** (2 * (torch.arange(half, dtype=torch.float32) // 2) / half)
    axes = []
    for count in (rows, columns):
        steps = torch.arange(1, count + 1, dtype=torch.float32)
        angles = (steps / (count + 1e-6) * 2 * math.pi)[:, None] / frequency
        axes.append(torch.stack((angles[:, 0::2].sin(), angles[:, 1::2].cos()), -1).flatten(1))
    y, x = axes
    grid = torch.cat((y[:, None].expand(-1, columns, -1), x[None].expand(rows, -1, -1)), -1)
    return grid.flatten(0, 1)
