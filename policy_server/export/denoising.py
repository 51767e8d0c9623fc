"""The arithmetic of DDPM (arXiv:2006.11239) and DDIM (arXiv:2010.02502) as diffusers 0.39 does it, step by step."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from edge_runtime.errors import ModelError
from policy_server.export.checkpoint import Checkpoint

MAX_BETA = 0.999


class Denoising(nn.Module):
    """From the network's answer at step i to the next sample; `timesteps` are the times that the network is asked at.

    Times lie `train // steps` apart and end at 0 ("leading" spacing). DDPM adds noise of its "fixed small" variance,
    DDIM none (eta 0). The numbers of each step are float32 and computed in diffusers' order.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Raises ModelError for what LeRobot's Diffusion Policy does not have."""
        super().__init__()
        self.kind = one_of(checkpoint, "noise_scheduler_type", ("DDPM", "DDIM"))
        self.predicts_sample = one_of(checkpoint, "prediction_type", ("epsilon", "sample")) == "sample"
        clip = checkpoint.setting("clip_sample", bool)
        self.clip = float(checkpoint.setting("clip_sample_range", (int, float))) if clip else None
        train = checkpoint.setting("num_train_timesteps", int)
        steps = checkpoint.config.get("num_inference_steps") or train
        if not isinstance(steps, int) or not 0 < steps <= train:
            raise ModelError(f"num_inference_steps: {steps} is not a number of steps out of {train}")
        apart = train // steps
        self.timesteps = (torch.arange(steps) * apart).flip(0)
        kept = torch.cumprod(1 - betas(checkpoint, train), 0)  # how much of the sample is left at each time
        now = kept[self.timesteps]
        before = torch.cat((now[1:], torch.ones(1)))
        ratio = now / before
        tables = {"sample_part": now**0.5, "noise_part": (1 - now) ** 0.5}
        if self.kind == "DDPM":
            variance = ((1 - before) / (1 - now) * (1 - ratio)).clamp(min=1e-20)
            spread = variance**0.5
            spread[-1] = 0  # the last step adds none
            tables |= {
                "to_clean": before**0.5 * (1 - ratio) / (1 - now),
                "to_sample": ratio**0.5 * (1 - before) / (1 - now),
                "spread": spread,
            }
        else:
            tables |= {"to_clean": before**0.5, "to_noise": (1 - before) ** 0.5}
        for name, table in tables.items():
            self.register_buffer(name, table[:, None, None], persistent=False)

    @property
    def steps(self) -> int:
        return len(self.timesteps)

    def forward(self, x: Tensor, answer: Tensor, step: Tensor, noise: Tensor | None) -> Tensor:
        """`x` and the network's `answer` (B, horizon, joints) at `step` (1,) -> the next x; `noise` for DDPM alone."""
        clean, predicted = answer, answer
        if not self.predicts_sample:
            clean = (x - self.noise_part[step] * answer) / self.sample_part[step]
        elif self.kind == "DDIM":
            predicted = (x - self.sample_part[step] * answer) / self.noise_part[step]
        if self.clip is not None:
            clean = clean.clamp(-self.clip, self.clip)  # the predicted noise stays what it was
        if noise is None:
            return self.to_clean[step] * clean + self.to_noise[step] * predicted
        return self.to_clean[step] * clean + self.to_sample[step] * x + self.spread[step] * noise


def betas(checkpoint: Checkpoint, count: int) -> Tensor:
    """(count,) float32: how much noise each time of training added."""
    schedule = one_of(checkpoint, "beta_schedule", ("squaredcos_cap_v2", "linear", "scaled_linear"))
    if schedule == "squaredcos_cap_v2":
        bars = [math.cos((i / count + 0.008) / 1.008 * math.pi / 2) ** 2 for i in range(count + 1)]
        return torch.tensor([min(1 - bars[i + 1] / bars[i], MAX_BETA) for i in range(count)], dtype=torch.float32)
    first, last = (float(checkpoint.setting(name, (int, float))) for name in ("beta_start", "beta_end"))
    if schedule == "linear":
        return torch.linspace(first, last, count, dtype=torch.float32)
    return torch.linspace(first**0.5, last**0.5, count, dtype=torch.float32) ** 2


def one_of(checkpoint: Checkpoint, name: str, words: tuple[str, ...]) -> str:
    word = checkpoint.setting(name, str)
    if word not in words:
        raise ModelError(f"{name}: {word} is not supported; expected one of {', '.join(words)}")
    return word
