"""`export-onnx CHECKPOINT --output DIR`: a LeRobot checkpoint becomes a bundle that `policy-server` runs."""

from __future__ import annotations

import argparse
import math
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from edge_runtime.errors import ConfigError, EdgeRuntimeError, UsageError
from edge_runtime.wire.messages import Joint
from policy_server.export import joints


class Parser(argparse.ArgumentParser):
    """argparse with our exit code for a command line that is not understood."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def parser() -> Parser:
    root = Parser(prog="export-onnx", description=__doc__, allow_abbrev=False)
    root.add_argument("checkpoint", type=Path, help="folder written by lerobot-train (…/pretrained_model)")
    root.add_argument("--output", type=Path, required=True, metavar="DIR", help="the bundle to write; must not exist")
    root.add_argument("--robot.type", dest="robot_type", metavar="TYPE", help=f"one of {', '.join(joints.ROBOTS)}")
    root.add_argument(
        "--robot.use_degrees", dest="use_degrees", type=boolean, default=True, metavar="BOOL",
        help="false: the arm was recorded in -100..100 instead of degrees (default: true)",
    )
    root.add_argument("--names", type=words, metavar="A,B,…", help="joint names, for a robot that is not in the table")
    root.add_argument("--units", type=words, metavar="U[,U…]", help="their units: one for all, or one for each")
    root.add_argument("--fps", type=float, required=True, help="the rate the policy was trained at, actions per second")
    root.add_argument("--precision", choices=("fp32", "fp16"), default="fp32", help="fp16: weights stored in half the bytes")
    root.add_argument("--opset", type=int, default=18, choices=range(18, 24), metavar="N", help="ONNX opset (default: 18)")
    root.add_argument("--debug", action="store_true", help="show a traceback with an error")
    return root


def boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is not true or false")
    return text.lower() == "true"


def words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(","))


def stated_joints(options: argparse.Namespace) -> tuple[Joint, ...]:
    """The joints the user stated, one way or the other. Raises ConfigError for neither, both or half of one."""
    if options.robot_type and (options.names or options.units):
        raise ConfigError("robot.type: names and units come from the table; give either it or --names and --units")
    if options.robot_type:
        return joints.of_robot(options.robot_type, options.use_degrees)
    if options.names and options.units:
        return joints.of_user(options.names, options.units)
    raise ConfigError("robot.type: a checkpoint holds neither joint names nor units; give it, or --names and --units")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that nothing half-written stays
    debug = "--debug" in (sys.argv if arguments is None else arguments)
    try:
        run(parser().parse_args(arguments))
    except EdgeRuntimeError as error:
        if debug:
            raise
        print(f"export-onnx: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("export-onnx: interrupted, nothing written", file=sys.stderr)
        return 128 + signal.SIGINT
    return 0


def run(options: argparse.Namespace) -> None:
    chosen = stated_joints(options)
    if not (math.isfinite(options.fps) and 0 < options.fps <= 1000):
        raise ConfigError(f"fps: {options.fps:g} is not in 0..1000")
    try:
        from policy_server.export.exporter import Request, export
    except ImportError as error:
        raise ConfigError(f"{error.name} is missing; install edge-runtime[export]") from error
    stated = {"joints": "robot.type" if options.robot_type else "names, units", "fps": options.fps}
    request = Request(chosen, options.fps, options.robot_type, options.precision, options.opset, stated)
    started = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {line}", flush=True)

    export(options.checkpoint, options.output, request, say)


if __name__ == "__main__":
    sys.exit(main())
