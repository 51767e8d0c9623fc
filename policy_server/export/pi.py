"""PI0 (Black et al. 2024, arXiv:2410.24164) and PI0.5 (arXiv:2504.16054) in two parts, as LeRobot 0.6.1 computes them.

PI0.5 differs in two ways: the state is text in its prompt (`prompt.py`) instead of a token of the expert, and the time
modulates the expert's norms instead of being mixed into the actions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edge_runtime.errors import ModelError
from policy_server.bundle import STATE
from policy_server.export.checkpoint import Checkpoint, Feature
from policy_server.export.flow import EulerStep, seen, time_embedding, times_of
from policy_server.export.language import (
    FORBIDDEN,
    Attention,
    Block,
    RMSNorm,
    Text,
    attend,
    rotate,
)
from policy_server.export.letterbox import Letterbox
from policy_server.export.scaling import PixelScaling, Scaling
from policy_server.export.vision import Vision
from policy_server.export.vlm import VlmSizes, count_layers
from policy_server.export.weights import load_strictly

# Fixed in LeRobot's code (`pi0/modeling_pi0.py`, `pi_gemma.py`): all other sizes are read off the weights' shapes.
KV_HEADS, VISION_HEADS, EPSILON, WAVELENGTH = 1, 16, 1e-6, 10_000.0
PALIGEMMA = "model.paligemma_with_expert.paligemma."
SHORT = {  # LeRobot's and transformers' long names -> ours
    f"{PALIGEMMA}model.vision_tower.vision_model.": "model.vision.",
    f"{PALIGEMMA}model.vision_tower.": "model.vision.",
    f"{PALIGEMMA}model.multi_modal_projector.linear.": "model.vision.connector.proj.",
    f"{PALIGEMMA}model.language_model.": "model.text.",
    f"{PALIGEMMA}lm_head.": "model.lm_head.",
    "model.paligemma_with_expert.gemma_expert.model.": "model.expert.",
    "model.paligemma_with_expert.gemma_expert.lm_head.": "model.expert_head.",
}
gelu = partial(F.gelu, approximate="tanh")


class PlainNorm(RMSNorm):
    """An expert's norm that the time does not touch; it has no gate."""

    def modulated(self, x: Tensor, step: Tensor) -> tuple[Tensor, Tensor | None]:
        return self(x), None


class TimedNorm(nn.Module):
    """An RMS norm whose scale, shift and gate follow from the time: one row for each step once `fold` was called."""

    def __init__(self, width: int, condition: int) -> None:
        super().__init__()
        self.width = width
        self.dense = nn.Linear(condition, 3 * width)

    def fold(self, conditions: Tensor) -> None:
        """Replace the projection by what it makes of the (steps, n) `conditions` that will ever come."""
        scale, shift, gate = self.dense(conditions).detach().chunk(3, -1)
        del self.dense
        for name, rows in (("scale", 1 + scale), ("shift", shift), ("gate", gate)):
            self.register_buffer(name, rows.clone(), persistent=False)

    def modulated(self, x: Tensor, step: Tensor) -> tuple[Tensor, Tensor | None]:
        normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON)
        return normed * self.scale[step] + self.shift[step], self.gate[step]


class ExpertLayer(Block):
    """A layer of the action expert; it attends to what the language layer of its depth saw, and to itself."""

    def __init__(self, sizes: VlmSizes, timed: bool) -> None:
        width = sizes.expert_width
        attention = Attention(width, sizes.head, sizes.heads, sizes.kv_heads)
        super().__init__(width, sizes.expert_hidden, EPSILON, attention, gelu)
        self.input_layernorm = norm(width, timed)
        self.post_attention_layernorm = norm(width, timed)

    def look(
        self, h: Tensor, step: Tensor, rotary: Tensor, keys: Tensor, values: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`h` after the layer, and the keys and values that it attended to, the prefix's (B, 1, m, head) first."""
        attention = self.self_attn
        y, gate = self.input_layernorm.modulated(h, step)
        query = rotate(attention.split(attention.q_proj(y)), rotary)
        keys = torch.cat((keys, rotate(attention.split(attention.k_proj(y)), rotary)), 2)
        values = torch.cat((values, attention.split(attention.v_proj(y))), 2)
        h = gated(h, attention.o_proj(attend(query, keys, values, bias)), gate)
        y, gate = self.post_attention_layernorm.modulated(h, step)
        return gated(h, self.feed(y), gate), keys, values


class PI(nn.Module):
    """All that was learned, loaded strictly; `Prefix` and `Step` are the two ways through it."""

    observations = 1
    noisy = False  # a step adds none

    def __init__(self, checkpoint: Checkpoint, tokens: int) -> None:
        """`tokens`: how many the prompt may have. Raises ModelError on what is not supported, missing or left over."""
        super().__init__()
        tensors = short_names(checkpoint)
        sizes = sizes_of(tensors)
        cameras = seen(checkpoint)
        state = next(feature for feature in checkpoint.inputs if feature.name == STATE)
        self.state_as_text = checkpoint.policy_type == "pi05"
        self.features: tuple[Feature, ...] = (state, *cameras)
        self.inputs = tuple(checkpoint.outside(feature) for feature in self.features)
        self.chunk = checkpoint.setting("chunk_size", int)
        self.joints = checkpoint.action.shape[0]
        self.width = checkpoint.setting("max_action_dim", int)
        self.tokens = tokens

        side, boxes = letterboxes(checkpoint, cameras)
        self.pixel_scalings = nn.ModuleList(PixelScaling(checkpoint.normalise(camera)) for camera in cameras)
        self.letterboxes = nn.ModuleList(boxes)
        self.state_scaling = Scaling(checkpoint.normalise(state))
        self.action_scaling = Scaling(checkpoint.unnormalise())
        self.vision = Vision(sizes, side, projection_bias=True)
        self.text = Text(sizes, gelu)
        inner = sizes.expert_width
        self.expert = nn.ModuleDict(
            {
                "layers": nn.ModuleList(ExpertLayer(sizes, self.state_as_text) for _ in range(sizes.expert_layers)),
                "norm": norm(inner, self.state_as_text),
            }
        )
        self.action_in_proj = nn.Linear(self.width, inner)
        self.action_out_proj = nn.Linear(inner, self.width)
        if self.state_as_text:
            self.time_mlp_in, self.time_mlp_out = nn.Linear(inner, inner), nn.Linear(inner, inner)
        else:
            self.state_proj = nn.Linear(checkpoint.setting("max_state_dim", int), inner)
            self.action_time_mlp_in, self.action_time_mlp_out = nn.Linear(2 * inner, inner), nn.Linear(inner, inner)
        load_strictly(self, tensors, "model.", ("lm_head.", "expert_head.", "text.norm.", *self.text.unused))

        times = times_of(checkpoint.setting("num_inference_steps", int))
        self.register_buffer("times", times, persistent=False)
        self.fold_times(time_embedding(times, inner, *periods(checkpoint)))
        half = checkpoint.config.get("dtype") == "bfloat16"
        length = len(cameras) * self.vision.tokens + tokens + 1
        self.register_buffer("rotary", rotary_table(length + self.chunk, sizes.head, half), persistent=False)
        root = torch.tensor(sizes.text_width**0.5)
        self.text_scale = float(root.bfloat16() if half else root)

    def fold_times(self, embedded: Tensor) -> None:
        """All that depends on the time alone, computed now: it takes `steps` values and no other."""
        if self.state_as_text:
            conditions = F.silu(self.time_mlp_out(F.silu(self.time_mlp_in(embedded))))
            for part in self.expert.modules():
                if isinstance(part, TimedNorm):
                    part.fold(conditions)
            del self.time_mlp_in, self.time_mlp_out
        else:
            layer = self.action_time_mlp_in
            rows = F.linear(embedded, layer.weight[:, layer.out_features :], layer.bias)
            self.register_buffer("embedded_times", rows, persistent=False)

    @property
    def steps(self) -> int:
        return len(self.times)

    @property
    def noise_shape(self) -> tuple[int, int]:
        return self.chunk, self.width


class Prefix(nn.Module):
    """What the actions attend to: keys and values of every layer, computed once from one observation."""

    outputs = ("keys", "values", "mask")

    def __init__(self, policy: PI) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, *observation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """State (B, joints) in joint units (PI0 alone), frames (B, H, W, 3) uint8 of each camera, tokens (B, n) int64
        and their mask (B, n) bool -> keys and values (layers, B, 1, length, head), mask (B, length) bool.

        PI0's state token looks at the prefix and at itself, and no time touches it: so it is part of the prefix.
        """
        policy = self.policy
        frames, (tokens, mask) = observation[-2 - len(policy.letterboxes) : -2], observation[-2:]
        pictures = [
            box(scaling(picture)) * 2 - 1
            for picture, scaling, box in zip(frames, policy.pixel_scalings, policy.letterboxes, strict=True)
        ]
        images = torch.cat(list(policy.vision(torch.cat(pictures)).unflatten(0, (len(pictures), -1))), 1)
        x = torch.cat((images, policy.text.embed_tokens(tokens) * policy.text_scale), 1)
        used = torch.cat((torch.ones_like(images[:, :, 0], dtype=torch.bool), mask), 1)
        if policy.state_as_text:
            return (*self.keys_and_values(x, used, None), used)
        state = policy.state_scaling(observation[0])
        state = F.linear(state, policy.state_proj.weight[:, : state.shape[1]], policy.state_proj.bias)
        return (*self.keys_and_values(x, used, state[:, None]), torch.cat((used, torch.ones_like(used[:, :1])), 1))

    def keys_and_values(self, x: Tensor, used: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        policy = self.policy
        bias = torch.where(used, 0.0, FORBIDDEN)[:, None, None, None]
        rotary = policy.rotary[: x.shape[1]]
        behind = policy.rotary[used.to(torch.int64).sum(1)[:, None]][:, None]
        with_state = F.pad(bias, (0, 1))
        keys, values = [], []
        for layer, expert in zip(policy.text.layers, policy.expert["layers"], strict=True):
            attention, y = layer.self_attn, layer.input_layernorm(x)
            key = rotate(attention.split(attention.k_proj(y)), rotary)
            value = attention.split(attention.v_proj(y))
            if isinstance(layer, Block):  # of the last layer nothing but its keys and values is used
                query = rotate(attention.split(attention.q_proj(y)), rotary)
                x = layer.finish(x, attend(query, key, value, bias))
            if state is not None:
                state, key, value = expert.look(state, policy.times[:1], behind, key, value, with_state)
            keys.append(key)
            values.append(value)
        return torch.stack(keys), torch.stack(values)


class Step(EulerStep):
    """One step of the flow through the expert, whose actions see the prefix and one another."""

    def velocity(self, x: Tensor, step: Tensor, keys: Tensor, values: Tensor, used: Tensor) -> Tensor:
        policy = self.policy
        rows = used.to(torch.int64).sum(1)[:, None] + torch.arange(policy.chunk)
        rotary = policy.rotary[rows][:, None]
        bias = F.pad(torch.where(used, 0.0, FORBIDDEN), (0, policy.chunk))[:, None, None, None]
        h = policy.action_in_proj(x)
        if not policy.state_as_text:
            weight = policy.action_time_mlp_in.weight[:, : h.shape[-1]]
            h = policy.action_time_mlp_out(F.silu(F.linear(h, weight) + policy.embedded_times[step]))
        for index, layer in enumerate(policy.expert["layers"]):
            h, _, _ = layer.look(h, step, rotary, keys[index], values[index], bias)
        return policy.action_out_proj(policy.expert["norm"].modulated(h, step)[0])


def norm(width: int, timed: bool) -> nn.Module:
    return TimedNorm(width, width) if timed else PlainNorm(width, EPSILON)


def gated(x: Tensor, y: Tensor, gate: Tensor | None) -> Tensor:
    return x + (y if gate is None else gate * y)


def short_names(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The checkpoint's tensors under the names of the modules above, each behind `model.`.

    LeRobot's own loader forgives the same: a missing `model.`, the other kind's name for the time's layers, and an
    embedding that is stored as the head alone. Gemma multiplies by one plus a norm's weight.
    """
    wrong, right = (
        ("action_time_mlp_", "time_mlp_") if checkpoint.policy_type == "pi05" else ("time_mlp_", "action_time_mlp_")
    )
    short = {}
    for name, tensor in checkpoint.tensors.items():
        name = "model." + name.removeprefix("model.").removeprefix("_orig_mod.").replace("model._orig_mod.", "")
        if name.startswith(f"model.{wrong}"):
            name = f"model.{right}" + name.removeprefix(f"model.{wrong}")
        for long, replacement in SHORT.items():
            if name.startswith(long):
                name = replacement + name.removeprefix(long)
                break
        if name.startswith(("model.text.", "model.expert.")) and name.endswith("norm.weight"):
            tensor = 1 + tensor
        short[name] = tensor
    if "model.lm_head.weight" in short:
        short.setdefault("model.text.embed_tokens.weight", short["model.lm_head.weight"])
    return short


def sizes_of(tensors: Mapping[str, Tensor]) -> VlmSizes:
    """Sizes from the tensors' shapes, named as `short_names` leaves them. Raises ModelError when one is missing."""

    def shape(name: str) -> tuple[int, ...]:
        if f"model.{name}" not in tensors:
            raise ModelError(f"the weights lack model.{name}; expected those of a PI0 or PI0.5")
        return tuple(tensors[f"model.{name}"].shape)

    vocabulary, text_width = shape("text.embed_tokens.weight")
    head = shape("text.layers.0.self_attn.k_proj.weight")[0] // KV_HEADS
    expert_width, expert_hidden = shape("expert.layers.0.mlp.down_proj.weight")
    places, vision_width = shape("vision.embeddings.position_embedding.weight")
    return VlmSizes(
        text_width=text_width,
        text_hidden=shape("text.layers.0.mlp.gate_proj.weight")[0],
        text_layers=count_layers(tensors, "model.text.layers."),
        text_epsilon=EPSILON,
        head=head,
        heads=shape("text.layers.0.self_attn.q_proj.weight")[0] // head,
        kv_heads=KV_HEADS,
        vocabulary=vocabulary,
        expert_width=expert_width,
        expert_hidden=expert_hidden,
        expert_layers=count_layers(tensors, "model.expert.layers."),
        vision_width=vision_width,
        vision_hidden=shape("vision.encoder.layers.0.mlp.fc1.weight")[0],
        vision_layers=count_layers(tensors, "model.vision.encoder.layers."),
        vision_heads=VISION_HEADS,
        vision_epsilon=EPSILON,
        patch=shape("vision.embeddings.patch_embedding.weight")[-1],
        table_side=math.isqrt(places),
        shuffle=1,
    )


def letterboxes(checkpoint: Checkpoint, cameras: tuple[Feature, ...]) -> tuple[int, list[Letterbox]]:
    """The side of the square that the vision encoder sees, and how each camera's frames get there."""
    asked = checkpoint.setting("image_resolution", list)
    if len(asked) != 2 or asked[0] != asked[1] or not isinstance(asked[0], int):
        raise ModelError(f"image_resolution: {asked} is not a square, which the vision encoder needs")
    return asked[0], [Letterbox(*checkpoint.frame(camera), asked[0], asked[1], centred=True) for camera in cameras]


def periods(checkpoint: Checkpoint) -> tuple[float, float]:
    shortest, longest = (float(checkpoint.setting(name, (int, float))) for name in ("min_period", "max_period"))
    return shortest, longest


def rotary_table(length: int, head: int, half: bool) -> Tensor:
    """(length, head): the cosines, then the sines, of every position below `length`; `half` rounds the frequencies.

    As in transformers' Gemma, whose frequencies LeRobot rounds to bfloat16 with all else where `dtype` says so.
    """
    frequencies = 1.0 / WAVELENGTH ** (torch.arange(0, head, 2, dtype=torch.float32) / head)
    if half:
        frequencies = frequencies.bfloat16().float()
    radians = torch.arange(length, dtype=torch.float32)[:, None] * frequencies
    return torch.cat((radians.cos(), radians.sin()), -1)
