"""`export-onnx CHECKPOINT --output DIR`: a LeRobot checkpoint becomes a bundle that `policy-server` runs."""

from __future__ import annotations

import argparse
import math
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from edge_runtime.errors import ConfigError, EdgeRuntimeError, UsageError
from edge_runtime.wire.messages import Joint
from policy_server.engines.providers import Runtime
from policy_server.export import joints
from policy_server.export.progress import Progress
from policy_server.export.request import Request


class Parser(argparse.ArgumentParser):
    """argparse with our exit code for a command line that is not understood."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def parser() -> Parser:
    root = Parser(
        prog="export-onnx",
        description=__doc__,
        usage="%(prog)s CHECKPOINT --output DIR --fps FPS (--robot.type TYPE | --names A,B --units U) [options]\n"
        "       %(prog)s --check BUNDLE [--providers P]",
        allow_abbrev=False,
    )
    add = root.add_argument
    add("checkpoint", nargs="?", help="folder written by lerobot-train, or a hub id that is in the local cache")
    add("--output", type=Path, metavar="DIR", help="the bundle to write; must not exist")
    add("--check", type=Path, metavar="BUNDLE", help="repeat a bundle's own checks on this machine; needs no torch")
    stated = root.add_argument_group("what a checkpoint does not hold")
    add = stated.add_argument
    add("--robot.type", dest="robot_type", metavar="TYPE", help=f"joint names and units of {', '.join(joints.ROBOTS)}")
    add("--robot.use_degrees", dest="use_degrees", type=boolean, default=True, metavar="BOOL", help="false: -100..100")
    add("--names", type=words, metavar="A,B,…", help="joint names, for a robot that is not in the table")
    add("--units", type=words, metavar="U[,U…]", help="their units: one for all, or one for each")
    add("--fps", type=float, metavar="FPS", help="actions per second that the policy was trained at")
    add("--stats", type=Path, metavar="FILE", help="normalisation statistics instead of the checkpoint's: a data set's "
        "meta/stats.json, or safetensors")  # fmt: skip
    add("--tokenizer", type=Path, metavar="DIR", help="folder of the language model: tokenizer.json, config.json")
    add("--image_size", type=sizes, default={}, metavar="[CAMERA=]WxH,…", help="size of the robot's frames, where it "
        "is not the one in the checkpoint; they are resized in the graph")  # fmt: skip
    graph = root.add_argument_group("how the graphs are to be")
    add = graph.add_argument
    add("--precision", choices=("fp32", "fp16"), default="fp32", help="fp16: weights stored in half the bytes")
    add("--opset", type=int, default=18, choices=range(18, 24), metavar="N", help="ONNX opset, 18..23 (default: 18)")
    add("--dynamic", action="store_true", help="SmolVLA: leave the number of tokens free too")
    add("--providers", choices=("auto", "cpu", "cuda", "tensorrt"), default="auto", help="where --check runs")
    add("--debug", action="store_true", help="show a traceback with an error")
    return root


def boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is not true or false")
    return text.lower() == "true"


def words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(","))


def sizes(text: str) -> dict[str, tuple[int, int]]:
    """`640x480`, or `front=640x480,wrist=320x240` -> camera, or "" for all -> (height, width)."""
    found = {}
    for part in text.split(","):
        camera, _, size = part.rpartition("=")
        width, _, height = size.partition("x")
        if not (width.isdecimal() and height.isdecimal() and 0 < int(width) <= 8192 and 0 < int(height) <= 8192):
            raise argparse.ArgumentTypeError(f"{part!r} is not a size such as 640x480 or front=640x480")
        found[camera] = (int(height), int(width))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    debug = "--debug" in (sys.argv if arguments is None else arguments)
    previous = signal.signal(signal.SIGTERM, _terminate)  # so that nothing half-written stays behind
    try:
        options = parser().parse_args(arguments)
        if options.check:
            run_check(options)
        else:
            run_export(options)
    except EdgeRuntimeError as error:
        if debug:
            raise
        print(f"export-onnx: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("export-onnx: interrupted; nothing was written", file=sys.stderr)
        return 128 + signal.SIGINT
    finally:
        signal.signal(signal.SIGTERM, previous)
    return 0


def run_check(options: argparse.Namespace) -> None:
    from policy_server.bundle import locate
    from policy_server.export.check import check

    check(locate(str(options.check)), Runtime(options.providers), Progress())


def run_export(options: argparse.Namespace) -> None:
    for name in ("checkpoint", "output", "fps"):
        if getattr(options, name) is None:
            raise UsageError(f"{name} is missing (see export-onnx --help)")
    request = request_of(options)
    try:
        from policy_server.export import checkpoint, exporter
    except ImportError as error:
        raise ConfigError(f"{error.name} is missing: install edge-runtime[export]") from error
    exporter.export(checkpoint.locate(options.checkpoint), options.output, request, Progress())


def request_of(options: argparse.Namespace) -> Request:
    """Raises ConfigError for what cannot be."""
    if not (math.isfinite(options.fps) and 0.1 <= options.fps <= 1000):
        raise ConfigError(f"fps: {options.fps:g} is not in 0.1..1000")
    stated = {"fps": options.fps, "joints": "robot.type" if options.robot_type else "names, units"}
    if options.stats:
        stated["stats"] = options.stats.name
    if options.image_size:
        stated["image_size"] = {camera or "all": f"{w}x{h}" for camera, (h, w) in options.image_size.items()}
    return Request(
        joints=joints_of(options),
        fps=options.fps,
        robot_type=options.robot_type,
        precision=options.precision,
        opset=options.opset,
        dynamic=options.dynamic,
        stats=options.stats,
        tokenizer=options.tokenizer,
        image_size=options.image_size,
        stated=stated,
    )


def joints_of(options: argparse.Namespace) -> tuple[Joint, ...]:
    """The joints the user stated, one way or the other. Raises ConfigError for neither, both, or half of one."""
    if options.robot_type and (options.names or options.units):
        raise ConfigError("robot.type: names and units come from the table; give either it or --names and --units")
    if options.robot_type:
        return joints.of_robot(options.robot_type, options.use_degrees)
    if options.names and options.units:
        return joints.of_user(options.names, options.units)
    raise ConfigError("robot.type: a checkpoint holds neither joint names nor units; give it, or --names and --units")


def _terminate(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
