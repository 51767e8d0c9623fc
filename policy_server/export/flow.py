"""What policies that flow from noise to actions share: the cameras that count, the time, and one step of the flow."""

from __future__ import annotations

import math
import re
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edge_runtime.errors import ModelError
from policy_server.export.checkpoint import Checkpoint, Feature

EMPTY_CAMERA = re.compile(r"observation\.images\.empty_camera_\d+$")


class Flow(Protocol):
    """What `EulerStep` asks of a policy: `width` numbers of an action flow, and its first `joints` are used."""

    chunk: int
    joints: int
    width: int
    times: Tensor
    action_scaling: nn.Module

    @property
    def steps(self) -> int:
        """How many steps lead from noise to actions."""


class EulerStep(nn.Module):
    """One Euler step of the flow from noise to actions, with guided real-time chunking (arXiv:2506.07339) built in."""

    def __init__(self, policy: Flow) -> None:
        super().__init__()
        self.policy: Any = policy  # its subclass knows which

    def forward(
        self, x: Tensor, step: Tensor, keys: Tensor, values: Tensor, used: Tensor,
        previous: Tensor, weights: Tensor, gain: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """`x` (B, chunk, width) at `step` (1,) int64, then the prefix's three outputs, -> the next x, and the actions
        (B, chunk, joints) it stands for, in joint units (of use after the last step).

        Guidance pulls towards `previous` (B, chunk, joints), what is left of the last chunk in normalised units, by
        `weights` (B, chunk) times `gain` (B, steps); with weights of zero there is none. No gradient goes through
        the network, as in LeRobot's `modeling_rtc.py`.
        """
        policy = self.policy
        velocity = self.velocity(x, step, keys, values, used)
        goal = F.pad(previous, (0, policy.width - policy.joints))
        error = goal - (x - policy.times[step] * velocity)
        pull = gain.index_select(1, step) * weights
        x = x - (velocity - pull[:, :, None] * error) / policy.steps
        return x, policy.action_scaling(x[:, :, : policy.joints])

    def velocity(self, x: Tensor, step: Tensor, keys: Tensor, values: Tensor, used: Tensor) -> Tensor:
        """Which way the actions flow at `x`: a subclass says."""
        raise NotImplementedError


def seen(checkpoint: Checkpoint) -> tuple[Feature, ...]:
    """The cameras that show something: empty ones are masked out in training, so leaving them out changes nothing."""
    empty = checkpoint.config.get("empty_cameras", 0)
    cameras = tuple(
        camera for camera in checkpoint.of_type("VISUAL") if not (empty and EMPTY_CAMERA.match(camera.name))
    )
    if not cameras:
        raise ModelError(f"input_features: no camera; a {checkpoint.policy_type} needs one at least")
    return cameras


def times_of(steps: int) -> Tensor:
    """(steps,) float32 from 1 down, rounded from double as LeRobot does."""
    return (1 - torch.arange(steps, dtype=torch.float64) / steps).float()


def time_embedding(times: Tensor, width: int, shortest: float, longest: float) -> Tensor:
    """(n, width): sines, then cosines, with periods from `shortest` to `longest`; in double, as LeRobot does."""
    fraction = torch.linspace(0.0, 1.0, width // 2, dtype=torch.float64)
    angles = times.double()[:, None] * (2 * math.pi / (shortest * (longest / shortest) ** fraction))
    return torch.cat((angles.sin(), angles.cos()), 1).float()
