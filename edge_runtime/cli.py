"""`edge-runtime WORD …`: a table of words, each loaded when it is used."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import yaml

from edge_runtime.acting.supervisor.client import watch_over
from edge_runtime.config import StartConfig
from edge_runtime.program import flags, lerobot_flags, logs, systemd

WORDS = {
    "start": ("edge_runtime.cli:start", "run a policy on a robot"),
    "doctor": ("edge_runtime.tools.doctor.cli:main", "check machine, arm, cameras and server before torque is on"),
    "setup-motors": ("edge_runtime.tools.bringup.setup_motors:main", "give each servo of a new arm its id"),
    "calibrate": (
        "edge_runtime.tools.bringup.calibrate:main",
        "record the ranges, in LeRobot's file and the servos",
    ),
    "replay-fault": ("edge_runtime.tools.replay:main", "show the seconds before a fault"),
    "service": ("edge_runtime.cli:service", "install, uninstall or show the systemd service"),
    "profile": ("edge_runtime.tools.profiler.cli:main", "where every millisecond goes, and what to change first"),
    "top": ("edge_runtime.tools.top.cli:main", "watch a robot that runs: queue, round trips, lateness, servos"),
    "demo": ("edge_runtime.tools.demo.cli:main", "a virtual arm at work, sequential against asynchronous"),
    "virtual-arm": (
        "edge_runtime.virtual_arm.cli:main",
        "an SO-101 that is not there: servos on a pty, cameras, a scene",
    ),
}


def main() -> int:
    """The entry point of `edge-runtime`; the exit codes are those of `errors`."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC's core writes to stderr by itself what we say in one line
    return flags.run_main(dispatch, sys.argv[1:], "edge-runtime")


def dispatch(argv: list[str]) -> int:
    return flags.dispatch("edge-runtime", WORDS, argv)


def start(argv: list[str]) -> int:
    argv = lerobot_flags.translated(argv, lerobot_flags.ROBOT, "edge-runtime start")
    config = flags.parse(StartConfig, argv, prog="edge-runtime start")
    with (
        logs.to_stderr(logging.DEBUG if config.debug else logging.INFO) as screen,
        watch_over(config) as supervisor,  # before grpc, whose threads do not survive a fork
    ):
        from edge_runtime.runtime import Runtime  # cv2 and grpc cost half a second: not before the flags are right

        Runtime(config, supervisor, screen=screen).run()
    return 0


def service(argv: list[str]) -> int:
    return systemd.main(argv, systemd.Program("edge-runtime", "edge_runtime", ("dialout", "video"), _needs))


def _needs(path: Path) -> systemd.Needs:
    """What the configuration in `path` asks of the unit. As a service it waits for its server for ever."""
    config = flags.parse(StartConfig, [f"--config_path={path}"], prog="edge-runtime start")
    patience = () if "give_up_after_s" in yaml.safe_load(path.read_text()) else ("--give_up_after_s=0",)
    return systemd.Needs(patience, getattr(config.robot, "port", ""))
