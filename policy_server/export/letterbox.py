"""Frames of any size made to fit what the policy was trained on, inside the graph."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class Resize(nn.Module):
    """Bilinear, without anti-aliasing, as `torch.nn.functional.interpolate` does it; the same size passes unchanged."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.height, self.width = height, width

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, 3, height, width)."""
        if images.shape[2] == self.height and images.shape[3] == self.width:
            return images
        return F.interpolate(images, (self.height, self.width), mode="bilinear", align_corners=False)


class Letterbox(nn.Module):
    """Scale frames to fit a box, keeping their aspect, and fill with 0 on the left and on the top, or on all sides.

    LeRobot's `resize_with_pad` (0.4, `modeling_smolvla.py`), with the truncation of its sizes; `centred` as PI0's
    (0.6, `common/vla_utils.py`), where an odd row or column goes to the bottom or right.
    """

    def __init__(self, height: int, width: int, box_height: int, box_width: int, centred: bool = False) -> None:
        super().__init__()
        ratio = max(width / box_width, height / box_height)
        self.resize = Resize(int(height / ratio), int(width / ratio))
        rows, columns = box_height - self.resize.height, box_width - self.resize.width
        self.top, self.left = (rows // 2, columns // 2) if centred else (rows, columns)
        self.padding = (self.left, columns - self.left, self.top, rows - self.top)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) in 0..1 -> (B, 3, box height, box width)."""
        images = self.resize(images)
        return F.pad(images, self.padding) if any(self.padding) else images
