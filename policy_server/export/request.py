"""What a user states for an export: all that a LeRobot checkpoint does not hold, and how the graphs are to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from edge_runtime.wire.messages import Joint


@dataclass(frozen=True)
class Request:
    """`stated` is recorded in the manifest; `image_size` maps a camera, or "" for all, to (height, width)."""

    joints: tuple[Joint, ...]
    fps: float
    robot_type: str | None = None
    precision: Literal["fp32", "fp16"] = "fp32"
    opset: int = 18
    dynamic: bool = False
    stats: Path | None = None
    tokenizer: Path | None = None
    state_numbers: int | None = None
    image_size: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    cameras: tuple[str, ...] = ()  # all of the checkpoint's, where none is named
    stated: Mapping[str, Any] = field(default_factory=dict)
