"""`edge-runtime doctor`: a checklist of all that `start` needs, and below each ✗ what mends it. Nothing moves."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from importlib import metadata

from edge_runtime.config import NoRobotConfig, RobotConfig, SOFollowerConfig, StartConfig
from edge_runtime.program import flags, lerobot_flags, logs, output
from edge_runtime.tools.doctor import packages
from edge_runtime.tools.doctor.finding import Finding


@dataclass
class DoctorConfig(StartConfig):
    """Check what `edge-runtime start` needs, given the same flags. Nothing moves: torque stays as it is."""

    robot: RobotConfig = field(default_factory=NoRobotConfig)  # without one, only the computer and the server
    json: bool = False  # for machines


def main(argv: list[str]) -> int:
    """0 if nothing has failed, else the exit code of the first failure."""
    argv = lerobot_flags.translated(argv, lerobot_flags.ROBOT, "edge-runtime doctor")
    config = flags.parse(DoctorConfig, argv, prog="edge-runtime doctor")
    if config.debug:
        logging.basicConfig(level=logging.DEBUG, format=logs.FORMAT)
        return _report(config)
    silence = logging.NullHandler()  # what would be logged is a finding
    logging.getLogger("edge_runtime").addHandler(silence)
    try:
        return _report(config)
    finally:
        logging.getLogger("edge_runtime").removeHandler(silence)


def _report(config: DoctorConfig) -> int:
    version = metadata.version("edge-runtime")
    findings: list[Finding] = []
    if not config.json:
        print(f"edge-runtime {version}: nothing moves, torque stays as it is")
    for finding in examine(config):
        if not config.json:
            if not findings or findings[-1].group != finding.group:
                print(f"\n{finding.group}")
            output.say(str(finding))
        findings.append(finding)
    code = next((finding.exit_code for finding in findings if finding.state == "failed"), 0)
    if config.json:
        report = {"version": version, "exit_code": code, "findings": [asdict(finding) for finding in findings]}
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        print(f"\n{_verdict(findings)}")
    return code


def _verdict(findings: list[Finding]) -> str:
    failed = sum(finding.state == "failed" for finding in findings)
    warned = sum(finding.state == "warning" for finding in findings)
    if failed:
        return f"{failed} to mend before `edge-runtime start`" + (f", {warned} to improve" if warned else "")
    return "ready for `edge-runtime start`" + (f", {warned} to improve" if warned else "")


def examine(config: DoctorConfig) -> Iterator[Finding]:
    """All findings, in the order in which a run meets what they are about."""
    whole = yield from packages.examine(needs_model=config.bundle is not None)
    if not whole:
        return
    from edge_runtime.tools.doctor import arm, cameras, machine, server  # only now: they import what was just looked at

    yield machine.disk(config)
    yield from machine.realtime(config)
    with ExitStack() as stack:
        found = yield from arm.examine(config, stack)
        views = yield from cameras.examine(config.robot.cameras, stack)
        offer = yield from server.meet(config, stack)
        robot = None if found is None else found.robot
        fitting = None
        if offer is not None and (robot is not None or arm.is_given(config)):
            fitting = yield from server.compare(config, offer, robot, views)
        if offer is None or robot is None or len(views) < len(config.robot.cameras):
            yield server.SERVER.skipped("handshake", "once arm, cameras and server are there")
        elif fitting is not None:
            yield server.converse(config, offer, robot, *fitting)
    if found is not None and isinstance(config.robot, SOFollowerConfig):
        yield arm.compare_torque(config.robot, found.torque)
