"""The eyes of vision-language models: a SigLIP transformer over patches, then their projection to tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edge_runtime.errors import ModelError
from policy_server.export.vlm import VlmSizes


class VisionAttention(nn.Module):
    """Self-attention over all patches, with biases."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            self.add_module(name, nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            projection(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        weights = torch.softmax((q * q.shape[-1] ** -0.5) @ k.transpose(2, 3), -1)
        return self.out_proj((weights @ v).transpose(1, 2).flatten(2))


class VisionLayer(nn.Module):
    """A pre-norm transformer block with the tanh approximation of GELU."""

    def __init__(self, sizes: VlmSizes) -> None:
        super().__init__()
        width = sizes.vision_width
        self.layer_norm1 = nn.LayerNorm(width, sizes.vision_epsilon)
        self.self_attn = VisionAttention(width, sizes.vision_heads)
        self.layer_norm2 = nn.LayerNorm(width, sizes.vision_epsilon)
        self.mlp = nn.ModuleDict(
            {"fc1": nn.Linear(width, sizes.vision_hidden), "fc2": nn.Linear(sizes.vision_hidden, width)}
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.layer_norm1(x))
        return x + self.mlp["fc2"](F.gelu(self.mlp["fc1"](self.layer_norm2(x)), approximate="tanh"))


class Vision(nn.Module):
    """Square images to tokens: `forward` takes (N, 3, side, side) in -1..1 and returns (N, tokens, text width).

    Parameter names are those of transformers' `SmolVLMVisionTransformer`, and `connector.proj`. SmolVLM shuffles
    several patches into one token; with a `shuffle` of 1 each patch is one.
    """

    def __init__(self, sizes: VlmSizes, side: int, projection_bias: bool = False) -> None:
        """Raises ModelError when `side` cannot be cut into whole patches and those into whole tokens."""
        super().__init__()
        self.patches = side // sizes.patch
        self.shuffle = sizes.shuffle
        if side % sizes.patch or self.patches % self.shuffle:
            raise ModelError(
                f"images: a side of {side} pixels is not a multiple of {sizes.patch * sizes.shuffle}, "
                f"which the vision encoder's patches need"
            )
        self.embeddings = nn.ModuleDict(
            {
                "patch_embedding": nn.Conv2d(3, sizes.vision_width, sizes.patch, sizes.patch),
                "position_embedding": nn.Embedding(sizes.table_side**2, sizes.vision_width),
            }
        )
        self.encoder = nn.ModuleDict({"layers": nn.ModuleList(VisionLayer(sizes) for _ in range(sizes.vision_layers))})
        self.post_layernorm = nn.LayerNorm(sizes.vision_width, sizes.vision_epsilon)
        self.connector = nn.ModuleDict(
            {"proj": nn.Linear(sizes.vision_width * self.shuffle**2, sizes.text_width, bias=projection_bias)}
        )
        # transformers spreads fewer patches over the table; with all of them a row is 0..n-1 (4.57 shifts float32 ones)
        rows = torch.arange(self.patches) * sizes.table_side // self.patches
        self.register_buffer("positions", (rows[:, None] * sizes.table_side + rows).flatten(), persistent=False)

    @property
    def tokens(self) -> int:
        """How many tokens one image becomes."""
        return (self.patches // self.shuffle) ** 2

    def forward(self, images: Tensor) -> Tensor:
        x = self.embeddings["patch_embedding"](images).flatten(2).transpose(1, 2)
        x = x + self.embeddings["position_embedding"].weight[self.positions]
        for layer in self.encoder["layers"]:
            x = layer(x)
        return self.connector["proj"](self.shuffled(self.post_layernorm(x)))

    def shuffled(self, x: Tensor) -> Tensor:
        """(N, patches², width) -> (N, tokens, width * shuffle²): each square of patches becomes one long token."""
        side = self.patches // self.shuffle
        x = x.unflatten(1, (side, self.shuffle, side, self.shuffle))  # rows, row in square, columns, column in square
        return x.permute(0, 1, 3, 2, 4, 5).flatten(3).flatten(1, 2)
