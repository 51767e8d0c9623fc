"""ResNet up to its last feature map, with batch norms folded into the convolutions: eyes of ACT and Diffusion."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from edge_runtime.errors import ModelError

BLOCKS = {
    "resnet18": (2, 2, 2, 2),
    "resnet34": (3, 4, 6, 3),
    "resnet50": (3, 4, 6, 3),
    "resnet101": (3, 4, 23, 3),
    "resnet152": (3, 8, 36, 3),
}
EPSILON = 1e-5  # torchvision's FrozenBatchNorm2d
NORM_OF = re.compile(r"(?P<path>.*\.|)(?:bn(?P<number>\d)|downsample\.1)\.running_var$")


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a skip: ResNet-18 and -34."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, dilation: int, grouped: bool) -> None:
        super().__init__()
        if dilation > 1:
            raise ModelError(
                "replace_final_stride_with_dilation: ResNet-18 and -34 have no dilated blocks; set it to 0"
            )
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=not grouped)
        self.bn1 = norm(width, grouped)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=not grouped)
        self.bn2 = norm(width, grouped)
        self.downsample = shortcut(inputs, width, stride, grouped)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and a skip: ResNet-50 and deeper."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, dilation: int, grouped: bool) -> None:
        super().__init__()
        outputs = self.expansion * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=not grouped)
        self.bn1 = norm(width, grouped)
        self.conv2 = nn.Conv2d(width, width, 3, stride, dilation, dilation, bias=not grouped)
        self.bn2 = norm(width, grouped)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=not grouped)
        self.bn3 = norm(outputs, grouped)
        self.downsample = shortcut(inputs, outputs, stride, grouped)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        return F.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class ResNet(nn.Module):
    """(B, 3, H, W) floats to `channels` feature maps of 1/32 the size (1/16 with `dilate`).

    The layout of torchvision 0.20's `resnet*` up to `layer4`, its names included, so that a checkpoint loads by name
    once `fold_batch_norms` has been over it. `width`: channels behind the first convolution; `grouped`: group norms,
    which cannot be folded, of `width / 16` groups. Raises ModelError for a backbone that is not one of `BLOCKS`.
    """

    def __init__(self, name: str, dilate: bool = False, width: int = 64, grouped: bool = False) -> None:
        super().__init__()
        if name not in BLOCKS:
            raise ModelError(f"vision_backbone: {name} is not supported; expected one of {', '.join(BLOCKS)}")
        block = Bottleneck if name in ("resnet50", "resnet101", "resnet152") else BasicBlock
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=not grouped)
        self.bn1 = norm(width, grouped)
        inputs = width
        for number, count in enumerate(BLOCKS[name], start=1):
            last = dilate and number == 4
            stride = 1 if number == 1 or last else 2
            layer = nn.Sequential()
            for index in range(count):
                dilation = 2 if last and index else 1  # torchvision's first block keeps the layer before's
                outputs = width * 2 ** (number - 1)
                layer.append(block(inputs, outputs, stride if index == 0 else 1, dilation, grouped))
                inputs = outputs * block.expansion
            self.add_module(f"layer{number}", layer)
        self.channels = inputs
        self.halvings = 4 if dilate else 5

    def map_size(self, height: int, width: int) -> tuple[int, int]:
        """The size of the last feature map for frames of this size."""
        for _ in range(self.halvings):
            height, width = (height + 1) // 2, (width + 1) // 2
        return height, width

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        return self.layer4(self.layer3(self.layer2(self.layer1(x))))


def shortcut(inputs: int, outputs: int, stride: int, grouped: bool) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=not grouped), norm(outputs, grouped))


def norm(width: int, grouped: bool) -> nn.Module:
    """Nothing where the batch norm is in the convolution."""
    return nn.GroupNorm(width // 16, width) if grouped else nn.Identity()


def fold_batch_norms(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`conv` and the `bn` behind it as one convolution with a bias, in double; what is not a pair passes through.

    Raises ModelError when a batch norm has no convolution, or a part of it is missing.
    """
    folded = dict(tensors)
    for name in tensors:
        match = NORM_OF.match(name)
        if match is None:
            continue
        norm = name.removesuffix(".running_var")
        number = match["number"]
        convolution = match["path"] + (f"conv{number}" if number else "downsample.0")
        folded.pop(f"{norm}.num_batches_tracked", None)  # of an ordinary batch norm; unused at inference
        try:
            weight, bias, mean, variance = (
                folded.pop(f"{norm}.{part}").double() for part in ("weight", "bias", "running_mean", "running_var")
            )
            kernel = folded[f"{convolution}.weight"].double()
        except KeyError as error:
            raise ModelError(f"model.safetensors: {error.args[0]} is missing beside {name}") from error
        scale = weight * (variance + EPSILON).rsqrt()
        folded[f"{convolution}.weight"] = (kernel * scale[:, None, None, None]).float()
        folded[f"{convolution}.bias"] = (bias - mean * scale).float()
    return folded
