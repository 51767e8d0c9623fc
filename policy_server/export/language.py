"""Blocks of a Llama-like transformer with grouped queries: language models and action experts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from policy_server.export.vlm import VlmSizes

WAVELENGTH = 10_000.0  # of the rotary positions, fixed in LeRobot's `apply_rope` whatever the model's config says
FORBIDDEN = torch.finfo(torch.float32).min
Activation = Callable[[Tensor], Tensor]


class RMSNorm(nn.Module):
    """Root-mean-square norm, as in Llama."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon))


class KeysAndValues(nn.Module):
    """The two projections of grouped-query attention that others look at, from `source` numbers each."""

    def __init__(self, source: int, head: int, kv_heads: int) -> None:
        super().__init__()
        self.head = head
        self.k_proj = nn.Linear(source, kv_heads * head, bias=False)
        self.v_proj = nn.Linear(source, kv_heads * head, bias=False)

    def split(self, x: Tensor) -> Tensor:
        """(B, n, heads * head) -> (B, heads, n, head)."""
        return x.unflatten(-1, (-1, self.head)).transpose(1, 2)


class Attention(KeysAndValues):
    """All four projections; keys and values from `source` numbers, or of the input's width."""

    def __init__(self, width: int, head: int, heads: int, kv_heads: int, source: int | None = None) -> None:
        super().__init__(source or width, head, kv_heads)
        self.q_proj = nn.Linear(width, heads * head, bias=False)
        self.o_proj = nn.Linear(heads * head, width, bias=False)


class Block(nn.Module):
    """One layer's parameters under transformers' names, and its feed-forward half."""

    def __init__(
        self, width: int, hidden: int, epsilon: float, attention: Attention, activation: Activation = F.silu
    ) -> None:
        super().__init__()
        self.activation = activation
        self.input_layernorm = RMSNorm(width, epsilon)
        self.self_attn = attention
        self.post_attention_layernorm = RMSNorm(width, epsilon)
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(width, hidden, bias=False),
                "up_proj": nn.Linear(width, hidden, bias=False),
                "down_proj": nn.Linear(hidden, width, bias=False),
            }
        )

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """What is left of the layer after its attention: output projection, skip, feed-forward, skip."""
        x = x + self.self_attn.o_proj(attended)
        return x + self.feed(self.post_attention_layernorm(x))

    def feed(self, y: Tensor) -> Tensor:
        """The gated feed-forward network."""
        return self.mlp["down_proj"](self.activation(self.mlp["gate_proj"](y)) * self.mlp["up_proj"](y))


class Text(nn.Module):
    """The language model's layers; of the last one what gives keys and values, of its head nothing."""

    def __init__(self, sizes: VlmSizes, activation: Activation = F.silu) -> None:
        super().__init__()
        self.width = sizes.text_width
        self.embed_tokens = nn.Embedding(sizes.vocabulary, sizes.text_width)
        attention = (sizes.text_width, sizes.head, sizes.heads, sizes.kv_heads)
        blocks = [
            Block(sizes.text_width, sizes.text_hidden, sizes.text_epsilon, Attention(*attention), activation)
            for _ in range(sizes.text_layers - 1)
        ]
        self.layers = nn.ModuleList([*blocks, LastLayer(sizes)])
        last = f"text.layers.{sizes.text_layers - 1}."
        self.unused = tuple(
            last + part for part in ("self_attn.q_proj.", "self_attn.o_proj.", "post_attention_layernorm.", "mlp.")
        )


class LastLayer(nn.Module):
    """The part of the last layer that the expert attends to."""

    def __init__(self, sizes: VlmSizes) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(sizes.text_width, sizes.text_epsilon)
        self.self_attn = KeysAndValues(sizes.text_width, sizes.head, sizes.kv_heads)


class ExpertLayer(Block):
    """A layer of the action expert, which attends to itself and the prefix, or `crosses` to the prefix alone."""

    def __init__(self, sizes: VlmSizes, crosses: bool) -> None:
        source = sizes.kv_heads * sizes.head if crosses else None
        attention = Attention(sizes.expert_width, sizes.head, sizes.heads, sizes.kv_heads, source)
        super().__init__(sizes.expert_width, sizes.expert_hidden, sizes.text_epsilon, attention)
        self.crosses = crosses

    def crossed(self, x: Tensor, projection: nn.Module) -> Tensor:
        """The language model's keys or values, (B, kv heads, n, head), as this layer sees them: same shape."""
        return self.self_attn.split(projection(x.transpose(1, 2).flatten(2)))


class Expert(nn.Module):
    """The action expert: as many layers as the language model, narrower."""

    def __init__(self, sizes: VlmSizes, crosses: Sequence[bool]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(ExpertLayer(sizes, cross) for cross in crosses)
        self.norm = RMSNorm(sizes.expert_width, sizes.text_epsilon)


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Grouped-query attention: (B, heads, n, d), (B, kv, m, d) twice, bias (B, 1, 1, n or 1, m) -> (B, n, heads * d).

    The queries of a group are stacked as rows of one product, so that keys and values are never repeated.
    """
    groups = query.shape[1] // key.shape[1]
    length, head = query.shape[2], query.shape[3]
    rows = query.unflatten(1, (-1, groups)).flatten(2, 3)
    scores = (rows @ key.transpose(2, 3)).unflatten(2, (groups, length)) * head**-0.5 + bias
    weighted = torch.softmax(scores, -1).flatten(2, 3) @ value
    return weighted.unflatten(2, (groups, length)).permute(0, 3, 1, 2, 4).flatten(2)


def rotary_table(length: int, head: int) -> Tensor:
    """(length, head): the cosines, then the sines, of every position below `length`."""
    exponents = (2.0 / head) * torch.arange(head // 2, dtype=torch.float32)
    radians = torch.arange(length, dtype=torch.float32)[:, None] / WAVELENGTH**exponents
    return torch.cat((radians.cos(), radians.sin()), -1)


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Rotary positions on (B, heads, n, head) by rows of `rotary_table`, (n, head) or (B, 1, n, head)."""
    cosine, sine = table.chunk(2, -1)
    x1, x2 = x.chunk(2, -1)
    return torch.cat((x1 * cosine - x2 * sine, x2 * cosine + x1 * sine), -1)
