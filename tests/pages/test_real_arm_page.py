"""docs/real-arm.md, followed to the letter by a person at a terminal: every command is typed, on the virtual arm."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import socket
import sysconfig
import tempfile
import urllib.request
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

import policy_server
from edge_runtime import errors
from edge_runtime.motors.calibration import JOINTS, TURNS_FREELY, load
from edge_runtime.program import flags, systemd
from edge_runtime.tools.demo.processes import Process, ours
from edge_runtime.virtual_arm.bus import VirtualBus
from edge_runtime.virtual_arm.calibration import CALIBRATION
from policy_server.export.cli import PROG, ExportConfig, request_of
from tests.edge_runtime.tools.bringup.person import Person
from tests.edge_runtime.tools.bringup.test_calibrate import turn

PAGE = Path(__file__).parents[2] / "docs" / "real-arm.md"
SHIPPED = Path(policy_server.__file__).parent / "bundles" / "act_so101_cubes"
MIDDLE = 2047
ALL = [1, 2, 3, 4, 5, 6]

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the page is in the repository, not in the wheel")

# What belongs to the system is noted, and not done; sudo does what it is asked, in another root.
SYSTEM = {
    "sudo": 'case "$*" in *" service "*) exec "$@" --root="$ROOT";; *) exec "$@";; esac',
    "python3": 'mkdir -p "$3/bin" && touch "$3/bin/activate"',
    **dict.fromkeys(("pip", "usermod", "systemctl", "journalctl"), ":"),
}


class Newcomer:
    """Follows the page: a home, a terminal or two, and the arm in each of its states, from the box to the service."""

    def __init__(self, home: Path, stack: ExitStack) -> None:
        self.home, self._stack = home, stack
        self.root = home / "root"
        self._noted = home / "noted"
        self._link = home / "arm"
        self._arm: dict[str, Any] = {}
        self._bench = VirtualBus(link=self._link)  # the arm on the bench, moved by hand
        stack.enter_context(self._bench)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{probe.getsockname()[1]}"
        shutil.copytree(SHIPPED, home / "bundles/my_policy")
        (home / "bin").mkdir()
        for name, does in SYSTEM.items():
            program = home / "bin" / name
            program.write_text(f'#!/bin/sh\necho "{name} $*" >> {self._noted}\n{does}\n')
            program.chmod(0o755)
        self._terminal = self._open_terminal()

    @property
    def noted(self) -> list[str]:
        """What the system was asked to do."""
        return self._noted.read_text().splitlines()

    def write(self, text: str) -> None:
        """A file, as its first line names it."""
        name = text.splitlines()[0].removeprefix("# ")
        (self.home / name).write_text(self._as_here(text))

    def type(self, block: str) -> None:
        """The commands of a block, each to its end; one that serves stays in a terminal of its own."""
        if block.startswith("# in a second terminal"):
            terminal = self._open_terminal()
            *commands, serves = block.splitlines()[1:]
            for command in commands:
                self._run(terminal, command)
            terminal.press(f"{self._as_here(serves)} --listen={self._address}\n")
            terminal.see(r"serving \[")
            return
        for command in block.splitlines():
            self._run(self._terminal, command)

    def _run(self, terminal: Person, command: str) -> None:
        """What happens with it on the bench, and what it says."""
        words = {"setup-motors": self._set_up, "calibrate": self._calibrate}
        expected = 0
        if "service status" in command:
            command, expected = f"{command} --root={self.root}", systemd.NOT_RUNNING  # in a test no systemd runs
        terminal.press(self._as_here(command) + "\n")
        for word, play in words.items():
            if f"edge-runtime {word}" in command:
                play(terminal)
        shown = terminal.see(r"<\d+> ")
        assert shown.endswith(f"<{expected}> "), f"{command}\n{shown}"
        if "service install" in command:
            program = re.search(r"command -v (\S+)\)", command)[1]  # type: ignore[index]
            assert (self.root / f"etc/systemd/system/{program}.service").exists()
        if "doctor" in command:
            assert "ready for `edge-runtime start`" in shown
            assert "✗" not in shown

    def _set_up(self, terminal: Person) -> None:
        for joint in ALL:
            self._bench.inject({"fault": "register", "ids": [joint], "name": "ID", "value": 1})
        for joint in reversed(ALL):
            terminal.see(f"Connect the {JOINTS[joint - 1]}'s servo only")
            self._bench.inject({"fault": "detach"})
            self._bench.inject({"fault": "attach", "ids": [joint]})
            terminal.press()
        terminal.see("chain all six")
        self._bench.inject({"fault": "attach"})
        terminal.press()
        terminal.see("all six answer")

    def _calibrate(self, terminal: Person) -> None:
        terminal.see("1. Move")
        self._bench.inject({"fault": "hand", "position": MIDDLE})
        terminal.press()
        terminal.see("Press Enter when")
        for joint, entry in CALIBRATION.items():
            for shaft in () if joint == TURNS_FREELY else (entry.range_min, entry.range_max, MIDDLE):
                turn(self._bench, entry.id, shaft)
        terminal.press()
        terminal.see("wrote offsets and ranges")
        self._put_on_the_table()

    def _put_on_the_table(self) -> None:
        """From now on the arm has masses and a scene before its cameras."""
        self._bench.__exit__(None, None, None)
        flags = ["--until_stdin_closes", "--http_port=0", f"--link={self._link}"]
        arm = self._stack.enter_context(Process("virtual-arm", ours("edge_runtime", "virtual-arm", *flags), self.home))
        self._arm = arm.report()

    def frames(self) -> list[dict[str, Any]]:
        """What passed over the arm's bus."""
        with urllib.request.urlopen(f"{self._arm['http']}/log", timeout=20) as answer:
            return json.load(answer)

    def _as_here(self, text: str) -> str:
        """The page's names as they are here."""
        cameras = self._arm.get("cameras", {})
        for page, here in {
            "/dev/serial/by-id/usb-1a86_USB_Single_Serial_58FA083324-if00": str(self._link),
            "/dev/v4l/by-id/usb-046d_C920-video-index0": cameras.get("static", ""),
            "/dev/v4l/by-id/usb-Arducam_B0332-video-index0": cameras.get("wrist", ""),
            "width: 640, height: 480, fps: 30": "width: 96, height: 96",
            "127.0.0.1:8080": self._address,
            "  id: my_arm\n": "  id: my_arm\n  bus_timeout_ms: 100\n",  # these servos share the machine with the rest
            "/etc/": f"{self.root}/etc/",
            "ls /dev/serial/by-id/": "ls /dev",
        }.items():
            text = text.replace(page, here)
        return re.sub(r"--duration_s=\d+", "--duration_s=1", text)

    def _open_terminal(self) -> Person:
        ours = sysconfig.get_path("scripts")
        environment = {"HOME": str(self.home), "USER": "daemon", "SUDO_USER": "daemon", "ROOT": str(self.root)}
        environment |= {"PATH": f"{self.home}/bin:{ours}:/usr/bin:/bin", "LANG": "C.UTF-8"}
        environment |= {"PS1": "<$?> ", "TERM": "dumb"}
        shell = ("bash", "--norc", "--noprofile", "-i")
        terminal = self._stack.enter_context(Person(program=shell, cwd=self.home, env=environment))
        terminal.see("<0> ")
        return terminal


@pytest.mark.long
def test_the_page_from_the_box_to_the_service() -> None:
    page = PAGE.read_text()
    with tempfile.TemporaryDirectory() as home, ExitStack() as stack:
        newcomer = Newcomer(Path(home), stack)
        for language, text in re.findall(r"^```(\w*)\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
            if language == "yaml":
                newcomer.write(text)
            elif language == "bash":
                newcomer.type(text)
        calibration = Path(home, ".cache/huggingface/lerobot/calibration/robots/so_follower/my_arm.json")
        assert load(calibration) == CALIBRATION
        torque = [next(iter(frame["values"].values())) for frame in newcomer.frames() if is_torque_write(frame)]
        changes = [value for value, _ in groupby(each["Torque_Enable"] for each in torque)]  # a busy host may ask twice
        assert changes == [0, 1, 0, 1, 0]  # off to write the memory of a new arm; two runs, the dry one not among them
        assert list((newcomer.root / "etc/systemd/system").glob("*.service")) == [
            newcomer.root / "etc/systemd/system/policy-server.service"
        ]
        assert "usermod -aG dialout,video daemon" in newcomer.noted
        assert "systemctl start edge-runtime" in newcomer.noted


def test_each_export_on_a_page_says_all_that_a_checkpoint_does_not_hold() -> None:
    pages = [PAGE.parents[1] / "README.md", *PAGE.parent.glob("*.md")]
    text = "\n".join(page.read_text() for page in pages).replace("\\\n", " ")
    exports = [line.split("#")[0] for line in re.findall(r"export-onnx ([^`\n]*--output[^`\n]*)", text)]
    assert len(exports) >= 4
    for line in exports:
        assert request_of(flags.parse(ExportConfig, shlex.split(line), prog=PROG, positional="checkpoint")).fps == 30


def is_torque_write(frame: dict[str, Any]) -> bool:
    return "WRITE" in frame["instruction"] and frame["registers"] == ["Torque_Enable"]


def test_the_exit_codes_on_the_page_are_those_of_the_errors() -> None:
    rows = dict(re.findall(r"^\| (\d+) \| .* \| (yes|no) \|$", PAGE.read_text(), re.MULTILINE))
    kinds = [errors.EdgeRuntimeError, *errors.EdgeRuntimeError.__subclasses__()]
    assert set(map(int, rows)) == {0} | {kind.exit_code for kind in kinds}
    unit = (Path(systemd.__file__).parents[1] / "edge-runtime.service").read_text()
    final = re.search(r"^RestartPreventExitStatus=(.*)$", unit, re.MULTILINE)
    assert final is not None
    assert {code for code, again in rows.items() if again == "no"} == {"0", *final[1].split()}
