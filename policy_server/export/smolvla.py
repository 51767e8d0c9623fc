"""SmolVLA (Shukor et al. 2025, arXiv:2506.01844) in two parts: what is seen, once, and one step of denoising."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edge_runtime.errors import ModelError
from policy_server.bundle import STATE
from policy_server.export.checkpoint import Checkpoint, Feature
from policy_server.export.flow import EulerStep, seen, time_embedding, times_of
from policy_server.export.language import FORBIDDEN, Block, Expert, Text, attend, rotary_table, rotate
from policy_server.export.letterbox import Letterbox
from policy_server.export.scaling import PixelScaling, Scaling
from policy_server.export.vision import Vision
from policy_server.export.vlm import VlmSizes, sizes_of
from policy_server.export.weights import load_strictly

SHORT = {  # LeRobot's and transformers' long names -> ours
    "model._orig_mod.": "model.",  # of a compiled policy
    "model.vlm_with_expert.vlm.model.vision_model.": "model.vision.",
    "model.vlm_with_expert.vlm.model.connector.modality_projection.": "model.vision.connector.",
    "model.vlm_with_expert.vlm.model.text_model.": "model.text.",
    "model.vlm_with_expert.vlm.lm_head.": "model.lm_head.",
    "model.vlm_with_expert.lm_expert.": "model.expert.",
}
REFUSED = {
    "adapt_to_pi_aloha": "the policy converts Aloha's joints, which no robot of ours sends; train without it",
    "use_delta_joint_actions_aloha": "the policy predicts deltas, not joint targets; train without it",
}


class SmolVLA(nn.Module):
    """All that was learned, loaded strictly; `Prefix` and `Step` are the two ways through it."""

    observations = 1
    noisy = False  # a step adds none

    def __init__(
        self, checkpoint: Checkpoint, vlm: Mapping[str, Any], tokens: int, markers: Sequence[int] = ()
    ) -> None:
        """`vlm`: the language model's configuration; `tokens`: how many the task text may have; `markers`: the ids of
        the fake image token and of the global image's, where the policy was trained with them around its images.

        Raises ModelError on what is not supported, missing or left over.
        """
        super().__init__()
        for name, why in REFUSED.items():
            if checkpoint.config.get(name):
                raise ModelError(f"{name}: {why}")
        tensors = short_names(checkpoint.tensors)
        sizes = sizes_of(tensors, vlm)
        cameras = seen(checkpoint)
        state = next(feature for feature in checkpoint.inputs if feature.name == STATE)
        self.features: tuple[Feature, ...] = (state, *cameras)
        self.inputs = tuple(checkpoint.outside(feature) for feature in self.features)
        self.chunk = checkpoint.setting("chunk_size", int)
        self.joints = checkpoint.action.shape[0]
        self.width = checkpoint.setting("max_action_dim", int)
        self.tokens = tokens
        self.register_buffer("markers", torch.tensor([*markers, *markers[:1]], dtype=torch.int64), persistent=False)

        side, boxes = letterboxes(checkpoint, cameras)
        self.pixel_scalings = nn.ModuleList(PixelScaling(checkpoint.normalise(camera)) for camera in cameras)
        self.letterboxes = nn.ModuleList(boxes)
        self.state_scaling = Scaling(checkpoint.normalise(state))
        self.action_scaling = Scaling(checkpoint.unnormalise())
        self.vision = Vision(sizes, side)
        self.text = Text(sizes)
        self.expert = Expert(sizes, crossing(checkpoint, sizes))
        inner = sizes.expert_width
        self.state_proj = nn.Linear(checkpoint.setting("max_state_dim", int), sizes.text_width)
        self.action_in_proj = nn.Linear(self.width, inner)
        self.action_out_proj = nn.Linear(inner, self.width)
        self.action_time_mlp_in = nn.Linear(2 * inner, inner)
        self.action_time_mlp_out = nn.Linear(inner, inner)
        load_strictly(self, tensors, "model.", ("lm_head.", "text.norm.", *self.text.unused))

        steps = checkpoint.setting("num_steps", int)
        times = times_of(steps)
        periods = [float(checkpoint.setting(name, (int, float))) for name in ("min_period", "max_period")]
        with torch.no_grad():
            embedded = F.linear(
                time_embedding(times, inner, *periods),
                self.action_time_mlp_in.weight[:, inner:],
                self.action_time_mlp_in.bias,
            )
        self.register_buffer("times", times, persistent=False)
        self.register_buffer("embedded_times", embedded, persistent=False)
        length = len(cameras) * self.image_tokens + tokens + 1
        self.register_buffer("rotary", rotary_table(length + self.chunk, sizes.head), persistent=False)

    @property
    def steps(self) -> int:
        return len(self.times)

    @property
    def noise_shape(self) -> tuple[int, int]:
        return self.chunk, self.width

    @property
    def image_tokens(self) -> int:
        """Of one camera, its markers included."""
        return self.vision.tokens + len(self.markers)


class Prefix(nn.Module):
    """What the action expert attends to: keys and values of every layer, computed once from one observation."""

    outputs = ("keys", "values", "mask")

    def __init__(self, policy: SmolVLA) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, *observation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """State (B, joints) in joint units, frames (B, H, W, 3) uint8 of each camera, tokens (B, n) int64 and their
        mask (B, n) bool -> keys and values (layers, B, kv heads, length, head), mask (B, length) bool.

        The layers that cross-attend get the expert's projections of the language model's keys and values.
        """
        policy = self.policy
        state, *frames, tokens, mask = observation
        images = self.see(frames)
        text = policy.text.embed_tokens(tokens) * policy.text.width**0.5
        state = policy.state_scaling(state)
        state = F.linear(state, policy.state_proj.weight[:, : state.shape[1]], policy.state_proj.bias)
        x = torch.cat((images, text, state[:, None]), 1)
        always = torch.ones_like(images[:, :, 0], dtype=torch.bool)
        one = torch.ones_like(mask[:, :1])
        used = torch.cat((always, mask, one), 1)
        is_state = torch.cat((~always, mask.logical_and(~mask), one), 1)  # images and text do not look at the state
        allowed = used[:, None, :] & (~is_state[:, None, :] | is_state[:, :, None])
        bias = torch.where(allowed, 0.0, FORBIDDEN)[:, None, None]
        return (*self.keys_and_values(x, bias, self.positions(images, tokens, mask)), used)

    def see(self, frames: Sequence[Tensor]) -> Tensor:
        """(B, tokens, width): every camera's picture, one behind the other."""
        policy = self.policy
        pictures = [
            box(scaling(picture)) * 2 - 1
            for picture, scaling, box in zip(frames, policy.pixel_scalings, policy.letterboxes, strict=True)
        ]
        seen = policy.vision(torch.cat(pictures)) * policy.text.width**0.5
        each = list(seen.unflatten(0, (len(pictures), -1)))
        if len(policy.markers):
            marks = policy.text.embed_tokens(policy.markers).expand(each[0].shape[0], -1, -1)
            each = [part for picture in each for part in (marks[:, :-1], picture, marks[:, -1:])]
        return torch.cat(each, 1)

    def positions(self, images: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        """(B, 1, length, head): rotary rows; the state comes right behind the last token of the text."""
        before = images.shape[1] + tokens.shape[1]
        rows = self.policy.rotary[:before].expand(tokens.shape[0], -1, -1)
        last = self.policy.rotary[images.shape[1] + mask.to(torch.int64).sum(1)]
        return torch.cat((rows, last[:, None]), 1)[:, None]

    def keys_and_values(self, x: Tensor, bias: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = [], []
        for layer, expert in zip(self.policy.text.layers, self.policy.expert.layers, strict=True):
            attention, y = layer.self_attn, layer.input_layernorm(x)
            key = rotate(attention.split(attention.k_proj(y)), rotary)
            value = attention.split(attention.v_proj(y))
            keys.append(expert.crossed(key, expert.self_attn.k_proj) if expert.crosses else key)
            values.append(expert.crossed(value, expert.self_attn.v_proj) if expert.crosses else value)
            if isinstance(layer, Block):  # of the last layer nothing but its keys and values is used
                query = rotate(attention.split(attention.q_proj(y)), rotary)
                x = layer.finish(x, attend(query, key, value, bias))
        return torch.stack(keys), torch.stack(values)


class Step(EulerStep):
    """One step of the flow through SmolVLA's expert, whose layers look at themselves or at the prefix alone."""

    def __init__(self, policy: SmolVLA) -> None:
        super().__init__(policy)
        shape = (policy.chunk, policy.chunk)
        causal = torch.full(shape, FORBIDDEN).triu(1)[None, None, None]
        self.register_buffer("causal", causal, persistent=False)

    def velocity(self, x: Tensor, step: Tensor, keys: Tensor, values: Tensor, used: Tensor) -> Tensor:
        """Which way the actions flow at `x`."""
        policy = self.policy
        inner = policy.action_in_proj.out_features
        here = policy.rotary[: policy.chunk]
        after = policy.rotary[used.to(torch.int64).sum(1)[:, None] + torch.arange(policy.chunk)][:, None]
        prefix = torch.where(used, 0.0, FORBIDDEN)[:, None, None, None]
        shape = (x.shape[0], -1, -1, policy.chunk, -1)
        both = torch.cat((prefix.expand(shape), self.causal.expand(shape)), -1)

        h = F.linear(policy.action_in_proj(x), policy.action_time_mlp_in.weight[:, :inner])
        h = policy.action_time_mlp_out(F.silu(h + policy.embedded_times[step]))
        for index, layer in enumerate(policy.expert.layers):
            attention, y = layer.self_attn, layer.input_layernorm(h)
            query = attention.split(attention.q_proj(y))
            if layer.crosses:
                attended = attend(rotate(query, here), keys[index], values[index], prefix)
            else:
                key = torch.cat((keys[index], rotate(attention.split(attention.k_proj(y)), after)), 2)
                value = torch.cat((values[index], attention.split(attention.v_proj(y))), 2)
                attended = attend(rotate(query, after), key, value, both)
            h = layer.finish(h, attended)
        return policy.action_out_proj(policy.expert.norm(h))


def short_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The checkpoint's tensors under the names of the modules above, each still behind `model.`."""
    short = {}
    for name, tensor in tensors.items():
        for long, replacement in SHORT.items():
            if name.startswith(long):
                name = replacement + name.removeprefix(long)
        short[name] = tensor
    return short


def letterboxes(checkpoint: Checkpoint, cameras: Sequence[Feature]) -> tuple[int, list[Letterbox]]:
    """The side of the square that the vision encoder sees, and how each camera's frames get there."""
    frames = [checkpoint.frame(camera) for camera in cameras]
    asked = checkpoint.config.get("resize_imgs_with_padding")
    width, height = asked or frames[0][::-1]
    if width != height:
        raise ModelError(f"resize_imgs_with_padding: {width}x{height} is not a square, which the vision encoder needs")
    if not asked and len(set(frames)) > 1:
        raise ModelError("resize_imgs_with_padding: null, and the cameras differ in size; expected one size for all")
    return width, [Letterbox(*frame, height, width) for frame in frames]


def crossing(checkpoint: Checkpoint, sizes: VlmSizes) -> list[bool]:
    """Which layers of the expert attend to the prefix alone. Raises ModelError on depths that we do not pair up."""
    depth = sizes.expert_layers
    asked = checkpoint.config.get("num_vlm_layers", 0)
    if depth != sizes.text_layers or (asked > 0 and asked != depth):
        raise ModelError(
            f"num_expert_layers: {depth} layers beside {sizes.text_layers} of the language model "
            f"(num_vlm_layers {asked}) are not supported; expected as many"
        )
    every = checkpoint.setting("self_attn_every_n_layers", int)
    crosses = "cross" in checkpoint.setting("attention_mode", str)
    return [crosses and not (every > 0 and index % every == 0) for index in range(depth)]
