"""The port: found, named for good, permitted, and ours alone; else who has it and what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_runtime.tools.doctor import port
from edge_runtime.virtual_arm.bus import VirtualBus
from tests.edge_runtime.tools.doctor.findings import Findings


@pytest.fixture
def arm() -> Iterator[VirtualBus]:
    with VirtualBus() as arm:
        yield arm


def look(path: object) -> Findings:
    return Findings(port.examine(str(path)))


def test_a_port_that_is_free(arm: VirtualBus, tmp_path: Path) -> None:
    assert look(arm.path).states() == {"port": "ok"}
    link = tmp_path / "arm"
    link.symlink_to(arm.path)
    assert look(link).about("port").said == f"{link} ({arm.path})"


def test_a_port_that_is_not_there() -> None:
    finding = look("/dev/serial/by-id/usb-nothing").about("port")
    assert (finding.state, finding.exit_code) == ("failed", 74)
    assert "is not there" in finding.said
    assert finding.mend


def test_a_file_is_no_port(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    finding = look(tmp_path / "file").about("port")
    assert "is not a serial port" in finding.said
    assert "ls /dev/serial/by-id" in finding.mend


@pytest.mark.parametrize("exclusive", [True, False])
def test_another_owner_is_named(arm: VirtualBus, exclusive: bool) -> None:
    """One that locks the port, as we do, and one that does not, as LeRobot."""
    program = f"import serial; p = serial.Serial({arm.path!r}, exclusive={exclusive}); print(flush=True); input()"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        try:
            other.stdout.readline()
            finding = look(arm.path).about("port")
        finally:
            other.communicate(b"\n", timeout=20)
    assert (finding.state, finding.exit_code) == ("failed", 74)
    assert finding.mend == f"end it: kill {other.pid}"
    if not exclusive:
        assert f"is open in {Path(sys.executable).resolve().name.partition('.')[0][:6]}" in finding.said
        assert f"(process {other.pid})" in finding.said


def test_without_permission(arm: VirtualBus) -> None:
    if os.geteuid():
        os.chmod(arm.path, 0)
        finding = look(arm.path).about("port")
    else:
        os.seteuid(65534)
        try:
            finding = look(arm.path).about("port")
        finally:
            os.seteuid(0)
    assert (finding.state, finding.exit_code) == ("failed", 77)
    assert finding.mend == "sudo usermod -aG dialout $USER, then log in again"


@pytest.mark.parametrize("name", ["ttyACM0", "ttyUSB12", "ttyCH343USB0"])
def test_a_name_that_moves_is_a_warning(
    arm: VirtualBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    moving = tmp_path / name
    moving.symlink_to(arm.path)
    assert look(moving).about("port").mend == "a udev rule that gives it a name of its own"
    stable = tmp_path / "by-id" / "usb-1a86-if00"
    stable.parent.mkdir()
    stable.symlink_to(arm.path)
    (stable.parent / "usb-other-if00").symlink_to("/dev/null")
    monkeypatch.setattr(port, "stable_names", lambda path, names=port.stable_names: names(path, stable.parent))
    finding = look(moving).about("port")
    assert (finding.state, finding.exit_code) == ("warning", 0)
    assert finding.mend == f"--robot.port={stable}"
    assert look(stable).about("port").state == "ok"


def test_an_adapter_that_keeps_bytes(arm: VirtualBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timer = tmp_path / "class/tty" / Path(arm.path).name / "device/latency_timer"
    timer.parent.mkdir(parents=True)
    timer.write_text("16\n")
    monkeypatch.setattr(port, "_SYS", tmp_path)
    finding = look(arm.path).about("latency timer")
    assert (finding.state, finding.mend) == ("warning", f"echo 1 | sudo tee {timer}")
    timer.write_text("1\n")
    assert look(arm.path).states() == {"port": "ok"}


def process(proc: Path, pid: int, name: str, cgroup: str, *files: str) -> None:
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "comm").write_text(f"{name}\n")
    (folder / "cgroup").write_text(cgroup)
    for number, file in enumerate(files):
        (folder / "fd" / str(number)).symlink_to(file)


def test_owners_and_how_to_be_rid_of_them(tmp_path: Path) -> None:
    port_file = str(tmp_path / "ttyACM0")
    process(tmp_path, 7, "edge-runtime", "0::/system.slice/edge-runtime.service\n", "/dev/null", port_file)
    process(tmp_path, 8, "ModemManager", "0::/system.slice/ModemManager.service\n", port_file)
    process(tmp_path, 9, "python3", "0::/user.slice/user-1000.slice/session-2.scope\n", port_file)
    process(tmp_path, 10, "bash", "0::/\n", "/dev/null")
    process(tmp_path, os.getpid(), "python3", "0::/\n", port_file)
    assert [str(owner) for owner in port.owners(port_file, tmp_path)] == [
        "edge-runtime (process 7)",
        "ModemManager (process 8)",
        "python3 (process 9)",
    ]
    assert [owner.mend for owner in port.owners(port_file, tmp_path)] == [
        "sudo systemctl stop edge-runtime",
        "sudo systemctl disable --now ModemManager: it takes serial ports for modems",
        "end it: kill 9",
    ]


def test_who_made_a_pty_is_no_owner_of_it(tmp_path: Path) -> None:
    process(tmp_path, 7, "edge-runtime", "0::/\n", "/dev/pts/3", "/dev/ptmx")
    process(tmp_path, 8, "python3", "0::/\n", "/dev/pts/3")
    assert [owner.pid for owner in port.owners("/dev/pts/3", tmp_path)] == [8]
