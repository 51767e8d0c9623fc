"""The server runs, answers and ends under what its unit allows it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edge_runtime.wire.messages import Chunk
from policy_server import bundle
from policy_server import cli as server_cli
from scripts.rig.robots import Robot, hello_to, look
from tests.security.sandbox import HEADER

ROOT = Path(__file__).resolve().parents[2]
POSSIBLE = os.geteuid() == 0 and HEADER.exists() and platform.machine() == "x86_64" and shutil.which("systemd-analyze")

pytestmark = [pytest.mark.long, pytest.mark.skipif(not POSSIBLE, reason="needs root, systemd-analyze and x86-64")]


def test_the_server_works_under_its_unit(tiny: Path, tmp_path: Path) -> None:
    settings = tmp_path / "etc/policy-server/config.yaml"
    settings.parent.mkdir(parents=True)
    settings.write_text("bundles: [act_so101_pick_place]\nproviders: cpu\n")
    assert server_cli.dispatch(["service", "install", "--user=daemon", f"--root={tmp_path}"]) == 0
    unit = tmp_path / "etc/systemd/system/policy-server.service"
    served = Path("/var/tmp") / f"sandbox-{os.getpid()}"  # /tmp is its own
    try:
        shutil.copytree(tiny, served)
        served.chmod(0o755)
        start = ["start", str(served), "--listen=127.0.0.1:0", "--threads=1", "--providers=cpu", "--metrics_port=0"]
        sandboxed = [sys.executable, "-m", "tests.security.sandbox", str(unit)]
        server = subprocess.Popen(
            [*sandboxed, sys.executable, "-m", "policy_server", *start, "--until_stdin_closes=true"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stderr is not None
            said = []
            for line in server.stderr:
                said.append(line)
                if found := re.search(r"serving \[tiny\] on (\S+)", line):
                    break
            assert found, "".join(said)
            policy = bundle.load(tiny).policy
            with Robot(found[1], hello_to(policy)) as robot:
                assert isinstance(robot.welcomed().ask(look(1)), Chunk)
            status = Path(f"/proc/{server.pid}/status").read_text()
            assert re.search(r"^Seccomp:\t2$", status, re.MULTILINE)
            assert re.search(r"^CapBnd:\t0+$", status, re.MULTILINE)
        finally:
            server.communicate(timeout=30)
        assert server.returncode == 0
    finally:
        shutil.rmtree(served, ignore_errors=True)
