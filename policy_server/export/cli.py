"""`export-onnx CHECKPOINT --output=DIR`: a LeRobot checkpoint becomes a bundle that `policy-server` runs."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, NoReturn

from edge_runtime.errors import ConfigError, UsageError
from edge_runtime.program import extras, flags, lerobot_flags
from edge_runtime.program.schema import Range, check_fields
from policy_server.engines import checkpoint_folder
from policy_server.engines.providers import Providers, Runtime
from policy_server.engines.stated import StatedRobot, stated
from policy_server.export.progress import Progress
from policy_server.export.request import Request

PROG = "export-onnx"


@dataclass
class ExportConfig:
    """A LeRobot checkpoint becomes a bundle, checked against torch before it appears.

    export-onnx CHECKPOINT --output=DIR --fps=30 --robot.type=so101_follower
    export-onnx CHECKPOINT --output=DIR --fps=30 --names=a.pos,b.pos --units=degrees
    export-onnx MODEL.onnx --output=DIR --fps=30 --names=a.pos,b.pos --units=degrees
    export-onnx --check=BUNDLE repeats a bundle's own checks on this machine, and needs no torch.
    """

    checkpoint: str | None = None  # a folder of lerobot-train, a hub id in the local cache, or an ONNX file
    prefix: Path | None = None  # of a flow whose step is the ONNX file
    steps: Annotated[int, Range(1, 1000)] | None = None  # of that flow
    output: Path | None = None  # the bundle to write; must not exist
    check: str | None = None  # a bundle: a folder, or the name of a shipped one
    robot: StatedRobot = field(default_factory=StatedRobot)
    names: list[str] = field(default_factory=list)  # of the joints, for a robot that is not in the table
    units: list[str] = field(default_factory=list)  # one for all joints, or one for each
    fps: Annotated[float, Range(0.1, 1000)] | None = None  # actions per second that the policy was trained at
    stats: Path | None = None  # a data set's meta/stats.json, or safetensors, instead of the checkpoint's statistics
    tokenizer: Path | None = None  # folder of the language model: tokenizer.json, config.json
    state_numbers: Annotated[int, Range(1, 4096)] | None = None  # PI0.5: numbers in its prompt
    image_size: str | dict[str, str] = field(default_factory=dict)  # 640x480, or by camera, where not the checkpoint's
    cameras: list[str] = field(default_factory=list)  # that the training had; others are left out (SmolVLA, PI0)
    precision: Literal["fp32", "fp16"] = "fp32"  # fp16: weights stored in half the bytes
    opset: Literal[18, 19, 20, 21, 22, 23] = 18  # of ONNX
    dynamic: bool = False  # SmolVLA: leave the number of tokens free too
    providers: Providers = "auto"  # where --check runs
    debug: bool = False  # tracebacks

    def __post_init__(self) -> None:
        check_fields(self)
        _ = self.sizes

    @property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """Camera, or "" for all -> (height, width) of the frames that will come."""
        texts = {"": self.image_size} if isinstance(self.image_size, str) else self.image_size
        return {camera: _size(f"image_size.{camera}".rstrip("."), text) for camera, text in texts.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return flags.run_main(run, sys.argv[1:] if arguments is None else arguments, PROG)


def run(argv: list[str]) -> int:
    """Raises what went wrong; whatever ends it, nothing half-written stays behind."""
    argv = lerobot_flags.translated(argv, lerobot_flags.EXPORT, PROG)
    config = flags.parse(ExportConfig, argv, prog=PROG, positional="checkpoint")
    previous = signal.signal(signal.SIGTERM, _terminate)
    try:
        check(config) if config.check is not None else export(config)
    finally:
        signal.signal(signal.SIGTERM, previous)
    return 0


def check(config: ExportConfig) -> None:
    from policy_server.bundle import locate
    from policy_server.export.check import check

    for name in ("checkpoint", "output"):
        if getattr(config, name) is not None:
            raise UsageError(f"{name}: --check looks at a bundle that is there; leave out one of the two")
    check(locate(str(config.check)), Runtime(config.providers), Progress())


def export(config: ExportConfig) -> None:
    if config.checkpoint is None:
        raise UsageError(f"checkpoint is missing: {PROG} CHECKPOINT --output=DIR …, see {PROG} --help")
    if config.output is None:
        raise UsageError("output is missing: --output=DIR, the bundle to write")
    request = request_of(config)
    own = config.checkpoint.endswith(".onnx")
    if not own and (config.prefix is not None or config.steps is not None):
        raise UsageError("prefix: a flow's prefix and steps belong to an ONNX file, not to a checkpoint")
    try:
        if own:
            from policy_server.export import own_graph
        else:
            from policy_server.export import exporter
    except ImportError as error:
        raise extras.explain(error, PROG) or error from error
    if own:
        own_graph.export(Path(config.checkpoint), config.output, request, Progress(), config.prefix, config.steps or 0)
        return
    exporter.export(checkpoint_folder.fetch(config.checkpoint), config.output, request, Progress())


def request_of(config: ExportConfig) -> Request:
    """Raises UsageError or ConfigError for what cannot be."""
    robot = stated(config.robot, config.names, config.units, config.fps)
    told: dict[str, object] = {
        "fps": robot.fps,
        "joints": "robot.type" if config.robot.type else "names, units",
    }
    if config.stats:
        told["stats"] = config.stats.name
    if config.state_numbers:
        told["state_numbers"] = config.state_numbers
    if config.cameras:
        told["cameras"] = config.cameras
    if config.sizes:
        told["image_size"] = {camera or "all": f"{w}x{h}" for camera, (h, w) in config.sizes.items()}
    return Request(
        joints=robot.joints,
        fps=robot.fps,
        robot_type=robot.robot_type,
        precision=config.precision,
        opset=config.opset,
        dynamic=config.dynamic,
        stats=config.stats,
        tokenizer=config.tokenizer,
        state_numbers=config.state_numbers,
        image_size=config.sizes,
        cameras=tuple(config.cameras),
        stated=told,
    )


def _size(setting: str, text: str) -> tuple[int, int]:
    """`640x480` -> (480, 640)."""
    width, _, height = text.partition("x")
    if not (width.isdecimal() and height.isdecimal() and 0 < int(width) <= 8192 and 0 < int(height) <= 8192):
        raise ConfigError(f"{setting}: {text!r} is not WIDTHxHEIGHT, such as 640x480")
    return int(height), int(width)


def _terminate(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
