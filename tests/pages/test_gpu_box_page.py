"""docs/gpu-box.md, command by command: a box and an arm, from install to TLS, a token and a systemd unit."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import policy_server
from edge_runtime.tools.demo.processes import Process, ours

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "gpu-box.md"
SHIPPED = Path(policy_server.__file__).parent / "bundles" / "act_so101_pick_place"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the page is in the repository, not in the wheel")

# What belongs to the system is noted, and done in another root or not at all.
SYSTEM = {
    "sudo": 'case "$*" in *" service "*) exec "$@" --root="$ROOT";; *) exec "$@";; esac',
    "scp": 'while [ $# -gt 1 ]; do cp -p "$1" "$ARM"; shift; done',
    "python3": 'mkdir -p "$3/bin" && touch "$3/bin/activate"',
    **dict.fromkeys(("pip", "systemctl", "journalctl", "ufw"), ":"),
}


class Lab:
    """Two homes, the box's and an arm's, and the server that the page starts."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._stack = stack
        self.box, self.arm, self.root = folder / "box", folder / "arm", folder / "root"
        programs = folder / "bin"
        for each in (self.box / "bundles", self.arm, programs):
            each.mkdir(parents=True)
        shutil.copytree(SHIPPED, self.box / "bundles" / "my_policy")
        self._noted = folder / "noted"
        for name, does in SYSTEM.items():
            program = programs / name
            program.write_text(f'#!/bin/sh\necho "{name} $*" >> {self._noted}\n{does}\n')
            program.chmod(0o755)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self._environment = {
            "PATH": f"{programs}:{sysconfig.get_path('scripts')}:/usr/bin:/bin",
            "ROOT": str(self.root),
            "ARM": str(self.arm),
            "USER": "daemon",
            "SUDO_USER": "daemon",
            "LANG": "C.UTF-8",
        }
        self.server: Process | None = None
        flags = ["virtual-arm", "--until_stdin_closes", "--http_port=0", "--cameras=[]", f"--link={folder / 'so101'}"]
        arm = stack.enter_context(Process("virtual-arm", ours("edge_runtime", *flags), folder)).report()
        (self.arm / "arm.yaml").write_text(
            f"robot: {{type: so101_follower, port: {arm['port']}, id: {arm['robot_id']}, "
            f"calibration_dir: {arm['calibration_dir']}, bus_timeout_ms: 100}}\n"
            f"extra_state: {{environment_state: {arm['http']}/state}}\nserver_address: 127.0.0.1:8080\n"
        )

    @property
    def noted(self) -> list[str]:
        """What the system was asked to do."""
        return self._noted.read_text().splitlines()

    def type(self, block: str) -> None:
        """A block, as it is copied from the page; the server in it goes on by itself."""
        text = block.replace("gpu-box.local", "127.0.0.1").replace("0.0.0.0:8443", self.address)
        text = re.sub(r"127\.0\.0\.1:8443", self.address, text).replace("/etc/", f"{self.root}/etc/")
        text = re.sub(r"--duration_s=\d+", "--duration_s=1", text)
        home = self.arm if text.startswith("# on the arm") else self.box
        start = re.search(r"^policy-server start (.*)$", text, re.MULTILINE)
        self._run(text.replace(start[0], "") if start else text, home)
        if "> server.yaml" in text:
            self.serve()
        if "systemctl reload" in text:
            self.reload()
        elif "make-certs ~/certs" in text:
            shutil.copytree(self.box / "certs", self.box / "old")

    def serve(self) -> None:
        """With the settings as they are now."""
        flags = ["start", f"--config_path={self.box}/server.yaml", "--providers=cpu", "--until_stdin_closes"]
        if self.server is not None:
            self.server.__exit__(None, None, None)
        self.server = self._stack.enter_context(Process("server", ours("policy_server", *flags), self.box))
        assert self.server.wait_for("serving [").endswith(f"serving [act_so101_pick_place] on {self.address}")

    def reload(self) -> None:
        """As systemd does it; until the server says for the second time which certificate it has."""
        assert self.server is not None
        with subprocess.Popen(
            ["tail", "-n", "+1", "-f", f"{self.box}/server.log"], stdout=subprocess.PIPE, text=True
        ) as log:
            assert log.stdout is not None
            said = (line for line in log.stdout if "TLS: certificate of " in line)
            next(said)
            os.kill(self.server.process.pid, signal.SIGHUP)
            next(said)
            log.kill()

    def _run(self, text: str, home: Path) -> None:
        environment = self._environment | {"HOME": str(home)}
        done = subprocess.run(
            ["bash", "-e", "-u", "-c", text],
            cwd=home,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"


def blocks() -> Iterator[str]:
    yield from re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.long
def test_the_page_from_install_to_the_service(tmp_path: Path) -> None:
    with ExitStack() as stack:
        lab = Lab(tmp_path, stack)
        for block in blocks():
            lab.type(block)
        assert (lab.root / "etc/systemd/system/policy-server.service").exists()
        assert "systemctl start policy-server" in lab.noted
        assert "systemctl reload policy-server" in lab.noted
        four_arms(lab)
        an_arm_that_is_not_let_in(lab)


def an_arm_that_is_not_let_in(lab: Lab) -> None:
    """Ends with exit code 77 and a line of the page's table, and gRPC says nothing beside it."""
    edge = f"{sysconfig.get_path('scripts')}/edge-runtime"
    refused = subprocess.run(
        [edge, "start", "--config_path=arm.yaml", f"--tls.ca={lab.box}/old/ca.crt"],
        cwd=lab.arm,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert refused.returncode == 77
    *before, last = refused.stderr.splitlines()
    assert last == (
        f"edge-runtime: {lab.address} refused: its certificate is not signed by {lab.box}/old/ca.crt (tls.ca)"
    )
    assert not [line for line in before if "ssl" in line.lower()]


def four_arms(lab: Lab) -> None:
    """Four at once, with the files that the page made; each goes on without a starved tick."""
    for name in ("ca.crt", "robot.crt", "robot.key"):  # the new ones, as the page says at the end of 6
        shutil.copy(lab.box / "certs" / name, lab.arm)
    arms = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.security.honest", lab.address, str(lab.arm)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for _ in range(4)
    ]
    try:
        for arm in arms:
            assert arm.stdout is not None
            assert arm.stdout.readline() == "running\n"
        lived = [json.loads(arm.communicate(timeout=20)[0]) for arm in arms]
        assert [each["starved"] for each in lived] == [0] * 4
        assert min(each["chunks"] for each in lived) >= 1
    finally:
        for arm in arms:
            arm.kill()
            arm.communicate()


def test_what_an_arm_says_is_on_the_page() -> None:
    """The sentences in the table are those of the program."""
    said = re.findall(r"^\| `(.*?)` \|", PAGE.read_text(), re.MULTILINE)[:7]
    source = "".join((ROOT / "edge_runtime" / "link" / name).read_text() for name in ("diagnosis.py", "stream.py"))
    source += (ROOT / "policy_server" / "door" / "tokens.py").read_text()
    for sentence in said:
        for part in re.split(r"…\S*|gpu-box\.local|denied access: ", sentence):
            assert part.strip(" :") in source, sentence


def test_the_limits_on_the_page_are_the_programs() -> None:
    from policy_server.config import ServerConfig

    config = ServerConfig()
    rows = re.findall(r"^\| `([\w.]+)` \| ([\d.]+) \|", PAGE.read_text(), re.MULTILINE)
    assert len(rows) == 4
    for name, value in rows:
        found: object = config
        for part in name.split("."):
            found = getattr(found, part)
        assert found == float(value), name
