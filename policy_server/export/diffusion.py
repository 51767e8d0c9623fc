"""Diffusion Policy (Chi et al. 2023, arXiv:2303.04137) in two parts, as LeRobot 0.6.1 computes it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edge_runtime.errors import ModelError
from policy_server.bundle import STATE
from policy_server.export.act import ENVIRONMENT
from policy_server.export.checkpoint import Checkpoint, Feature
from policy_server.export.denoising import Denoising
from policy_server.export.letterbox import Resize
from policy_server.export.resnet import ResNet, fold_batch_norms
from policy_server.export.scaling import PixelScaling, Scaling
from policy_server.export.weights import load_strictly

BACKBONE = re.compile(r"(?P<before>diffusion\.rgb_encoder\.(?:\d+\.)?backbone\.)(?P<number>\d)\.")
SEQUENTIAL = {"0": "conv1", "1": "bn1", "4": "layer1", "5": "layer2", "6": "layer3", "7": "layer4"}
FINAL_GROUPS = 8  # of the last convolution's norm, whatever `n_groups` says


class Diffusion(nn.Module):
    """All that was learned, loaded strictly; `Prefix` and `Step` are the two ways through it."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Raises ModelError on what is not supported, missing or left over."""
        super().__init__()
        vectors = {feature.name: feature for feature in checkpoint.inputs if feature.type != "VISUAL"}
        if not set(vectors) <= {STATE, ENVIRONMENT}:
            raise ModelError(f"input_features: {', '.join(vectors)}; Diffusion takes {STATE} and {ENVIRONMENT}")
        self.cameras = cameras = checkpoint.of_type("VISUAL")
        ordered = tuple(vectors[name] for name in (STATE, ENVIRONMENT) if name in vectors)
        self.features: tuple[Feature, ...] = ordered + cameras
        self.inputs = tuple(checkpoint.outside(feature) for feature in self.features)
        self.observations = checkpoint.setting("n_obs_steps", int)
        self.chunk = checkpoint.setting("n_action_steps", int)
        self.horizon = checkpoint.setting("horizon", int)
        self.joints = checkpoint.action.shape[0]
        widths = checkpoint.setting("down_dims", list)
        if self.observations - 1 + self.chunk > self.horizon:
            raise ModelError(
                f"n_action_steps: {self.chunk} actions from observation {self.observations} on "
                f"do not fit the horizon {self.horizon}"
            )
        if self.horizon % 2 ** (len(widths) - 1):
            raise ModelError(f"horizon: {self.horizon} cannot be halved {len(widths) - 1} times, as down_dims does")

        self.vector_scalings = nn.ModuleList(Scaling(checkpoint.normalise(vector)) for vector in ordered)
        self.pixel_scalings = nn.ModuleList(
            PixelScaling(checkpoint.normalise(camera), Resize(*camera.shape[1:])) for camera in cameras
        )
        self.action_scaling = Scaling(checkpoint.unnormalise())
        condition = sum(vector.shape[0] for vector in ordered)
        if cameras:
            tensors = short_names(checkpoint.tensors)
            apart = checkpoint.setting("use_separate_rgb_encoder_per_camera", bool)
            count = len(cameras) if apart else 1
            eyes = [
                Eye(checkpoint, camera, tensors, f"rgb_encoder.{i}." if apart else "rgb_encoder.")
                for i, camera in enumerate(cameras[:count])
            ]
            self.rgb_encoder = nn.ModuleList(eyes) if apart else eyes[0]
            condition += eyes[0].out.out_features * len(cameras)
        else:
            tensors = short_names(checkpoint.tensors)
        self.unet = UNet(checkpoint, self.joints, widths, condition * self.observations)
        self.denoising = Denoising(checkpoint)
        load_strictly(self, tensors, "diffusion.", ())
        self.unet.fold_times(self.denoising.timesteps)

    @property
    def steps(self) -> int:
        return self.denoising.steps

    @property
    def noise_shape(self) -> tuple[int, int]:
        return self.horizon, self.joints

    @property
    def noisy(self) -> bool:
        """Whether each step adds noise of its own."""
        return self.denoising.kind == "DDPM"


class Prefix(nn.Module):
    """What the U-Net is conditioned on, computed once from the last observations."""

    outputs = ("condition",)

    def __init__(self, policy: Diffusion) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, *observation: Tensor) -> Tensor:
        """State and environment state (B, observations, n), frames (B, observations, H, W, 3) uint8 of each camera,
        oldest first; with one observation the axis is left out -> (B, condition).
        """
        policy = self.policy
        if policy.observations == 1:
            observation = tuple(array[:, None] for array in observation)
        count = len(policy.vector_scalings)
        vectors = [scaling(x) for scaling, x in zip(policy.vector_scalings, observation[:count], strict=True)]
        seen = []
        for index, (scaling, frames) in enumerate(zip(policy.pixel_scalings, observation[count:], strict=True)):
            eye = policy.rgb_encoder[index] if isinstance(policy.rgb_encoder, nn.ModuleList) else policy.rgb_encoder
            seen.append(eye(scaling(frames.flatten(0, 1))).unflatten(0, (-1, policy.observations)))
        return torch.cat((vectors[0], *seen, *vectors[1:]), -1).flatten(1)


class Step(nn.Module):
    """One step from noise to actions."""

    def __init__(self, policy: Diffusion) -> None:
        super().__init__()
        self.policy = policy

    def forward(
        self, x: Tensor, step: Tensor, condition: Tensor, step_noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`x` (B, horizon, joints) at `step` (1,) int64, the prefix's output, and for DDPM the noise of every step
        (B, steps, horizon, joints) -> the next x, and the actions (B, chunk, joints) from the newest observation on,
        in joint units (of use after the last step).
        """
        policy = self.policy
        noise = None if step_noise is None else step_noise.index_select(1, step).squeeze(1)
        x = policy.denoising(x, policy.unet(x, step, condition), step, noise)
        first = policy.observations - 1
        return x, policy.action_scaling(x[:, first : first + policy.chunk])


class Eye(nn.Module):
    """(N, 3, H, W) normalised frames -> (N, features): a ResNet, the mean place of each keypoint, and a layer."""

    def __init__(self, checkpoint: Checkpoint, camera: Feature, tensors: Mapping[str, Tensor], name: str) -> None:
        super().__init__()
        size, resized = camera.shape[1:], checkpoint.config.get("resize_shape")
        crop = checkpoint.config.get("crop_shape")
        if resized:
            ratio = float(checkpoint.setting("crop_ratio", (int, float)))
            crop = [int(side * ratio) for side in resized] if ratio < 1 else None
        self.smooth = Smooth(*size, *resized) if resized else nn.Identity()
        self.crop = Crop(*(resized or size), *crop) if crop else nn.Identity()
        grouped = checkpoint.setting("use_group_norm", bool)
        first = tensors.get(f"diffusion.{name}backbone.conv1.weight")
        if first is None:
            raise ModelError(
                f"the weights lack diffusion.{name}backbone.0.weight; expected those of a Diffusion Policy"
            )
        self.backbone = ResNet(checkpoint.setting("vision_backbone", str), width=len(first), grouped=grouped)
        height, width = self.backbone.map_size(*(crop or resized or size))
        self.pool = Keypoints(
            self.backbone.channels, checkpoint.setting("spatial_softmax_num_keypoints", int), height * width
        )
        features = 2 * self.pool.nets.out_channels
        self.out = nn.Linear(features, features)

    def forward(self, images: Tensor) -> Tensor:
        return F.relu(self.out(self.pool(self.backbone(self.crop(self.smooth(images))))))


class Smooth(nn.Module):
    """Torchvision's `Resize`: bilinear with antialiasing, as one matrix for the rows and one for the columns."""

    def __init__(self, height: int, width: int, new_height: int, new_width: int) -> None:
        super().__init__()
        for name, old, new in (("rows", height, new_height), ("columns", width, new_width)):
            square = torch.eye(old)[None, None]
            made = F.interpolate(square, (new, old), mode="bilinear", align_corners=False, antialias=True)
            self.register_buffer(name, made[0, 0], persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return self.rows @ (images @ self.columns.T)


class Crop(nn.Module):
    """The middle of a picture, as torchvision's `CenterCrop` finds it."""

    def __init__(self, height: int, width: int, new_height: int, new_width: int) -> None:
        super().__init__()
        if new_height > height or new_width > width:
            raise ModelError(f"crop_shape: {new_width}x{new_height} is larger than the picture, {width}x{height}")
        self.top, self.left = round((height - new_height) / 2), round((width - new_width) / 2)
        self.height, self.width = new_height, new_width

    def forward(self, images: Tensor) -> Tensor:
        return images[:, :, self.top : self.top + self.height, self.left : self.left + self.width]


class Keypoints(nn.Module):
    """Where each of `count` maps is on average (arXiv:1509.06113): (N, C, H, W) -> (N, 2 * count), x then y."""

    def __init__(self, channels: int, count: int, places: int) -> None:
        super().__init__()
        self.nets = nn.Conv2d(channels, count, 1)
        self.register_buffer("pos_grid", torch.empty(places, 2))

    def forward(self, maps: Tensor) -> Tensor:
        return (torch.softmax(self.nets(maps).flatten(2), -1) @ self.pos_grid).flatten(1)


class Block(nn.Module):
    """A convolution over time, a group norm, Mish."""

    def __init__(self, inputs: int, outputs: int, kernel: int, groups: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv1d(inputs, outputs, kernel, padding=kernel // 2), nn.GroupNorm(groups, outputs), nn.Mish()
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)


class Residual(nn.Module):
    """Two blocks with a skip; the condition shifts, and where `scales` also multiplies, what lies between them."""

    def __init__(self, inputs: int, outputs: int, condition: int, kernel: int, groups: int, scales: bool) -> None:
        super().__init__()
        self.scales = scales
        self.conv1 = Block(inputs, outputs, kernel, groups)
        self.conv2 = Block(outputs, outputs, kernel, groups)
        self.cond_encoder = nn.Sequential(nn.Mish(), nn.Linear(condition, outputs * (2 if scales else 1)))
        self.residual_conv = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        y, modulation = self.conv1(x), self.cond_encoder(condition)[:, :, None]
        if self.scales:
            scale, modulation = modulation.chunk(2, 1)
            y = scale * y
        return self.conv2(y + modulation) + self.residual_conv(x)


class UNet(nn.Module):
    """(B, horizon, joints), step, condition -> (B, horizon, joints): every level but the last halves the horizon."""

    def __init__(self, checkpoint: Checkpoint, joints: int, widths: Sequence[int], condition: int) -> None:
        super().__init__()
        time = checkpoint.setting("diffusion_step_embed_dim", int)
        kernel = checkpoint.setting("kernel_size", int)
        rest = (kernel, checkpoint.setting("n_groups", int), checkpoint.setting("use_film_scale_modulation", bool))

        def pair(inputs: int, outputs: int) -> list[nn.Module]:
            return [
                Residual(inputs, outputs, time + condition, *rest),
                Residual(outputs, outputs, time + condition, *rest),
            ]

        levels = list(zip((joints, *widths), widths, strict=False))
        self.diffusion_step_encoder = nn.Sequential(
            nn.Identity(), nn.Linear(time, 4 * time), nn.Mish(), nn.Linear(4 * time, time)
        )
        self.down_modules = nn.ModuleList(
            nn.ModuleList(
                [
                    *pair(inputs, outputs),
                    nn.Conv1d(outputs, outputs, 3, 2, 1) if level < len(levels) - 1 else nn.Identity(),
                ]
            )
            for level, (inputs, outputs) in enumerate(levels)
        )
        self.mid_modules = nn.ModuleList(pair(widths[-1], widths[-1]))
        self.up_modules = nn.ModuleList(
            nn.ModuleList([*pair(2 * wide, narrow), nn.ConvTranspose1d(narrow, narrow, 4, 2, 1)])
            for narrow, wide in reversed(levels[1:])
        )
        self.final_conv = nn.Sequential(
            Block(widths[0], widths[0], kernel, FINAL_GROUPS), nn.Conv1d(widths[0], joints, 1)
        )

    def fold_times(self, timesteps: Tensor) -> None:
        """Replace the embedding of the time by its value at each step."""
        half = self.diffusion_step_encoder[1].in_features // 2
        wavelengths = torch.exp(torch.arange(half) * -(math.log(10000) / (half - 1)))
        angles = timesteps[:, None] * wavelengths
        embedded = self.diffusion_step_encoder(torch.cat((angles.sin(), angles.cos()), -1))
        del self.diffusion_step_encoder
        self.register_buffer("embedded_times", embedded, persistent=False)

    def forward(self, x: Tensor, step: Tensor, condition: Tensor) -> Tensor:
        condition = torch.cat((self.embedded_times[step].expand(x.shape[0], -1), condition), -1)
        x, skips = x.transpose(1, 2), []
        for first, second, down in self.down_modules:
            x = second(first(x, condition), condition)
            skips.append(x)
            x = down(x)
        for part in self.mid_modules:
            x = part(x, condition)
        for first, second, up in self.up_modules:
            x = up(second(first(torch.cat((x, skips.pop()), 1), condition), condition))
        return self.final_conv(x).transpose(1, 2)


def short_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The checkpoint's tensors with torchvision's names for the backbone, its batch norms folded."""
    short = {}
    for name, tensor in tensors.items():
        name = name.replace("diffusion.unet._orig_mod.", "diffusion.unet.")  # of a compiled policy
        if match := BACKBONE.match(name):
            name = f"{match['before']}{SEQUENTIAL.get(match['number'], match['number'])}.{name[match.end() :]}"
        short[name] = tensor
    return fold_batch_norms(short)
