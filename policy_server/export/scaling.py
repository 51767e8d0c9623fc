"""Normalisation inside the graph: joint units, pixels and actions as arithmetic on tensors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from policy_server.export.normalisation import Affine, Doubles


class Scaling(nn.Module):
    """`(x - centre) * scale + offset`; steps that would change nothing are left out.

    Over the last dimension, or over the one that `trailing` others follow.
    """

    def __init__(self, affine: Affine, trailing: int = 0) -> None:
        super().__init__()
        for name in ("centre", "scale", "offset"):
            values: Doubles = getattr(affine, name)
            idle = 1.0 if name == "scale" else 0.0
            tensor = None if (values == idle).all() else torch.from_numpy(values).float().reshape(-1, *[1] * trailing)
            self.register_buffer(name, tensor, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.centre is not None:
            x = x - self.centre
        if self.scale is not None:
            x = x * self.scale
        return x if self.offset is None else x + self.offset


class PixelScaling(nn.Module):
    """(B, H, W, 3) uint8 -> (B, 3, height, width) float32, resized if need be, normalised colour by colour."""

    def __init__(self, affine: Affine, resize: nn.Module | None = None) -> None:
        super().__init__()
        self.resize = resize or nn.Identity()
        self.scaling = Scaling(affine.for_pixels(), trailing=2)

    def forward(self, frames: Tensor) -> Tensor:
        return self.scaling(self.resize(frames.permute(0, 3, 1, 2).float()))  # bytes are moved, not floats
