"""`edge-runtime doctor` as a whole: against a virtual arm and a real server nothing is wrong, and nothing moves."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from edge_runtime.program import extras
from edge_runtime.tools.demo.processes import Process, ours
from edge_runtime.tools.doctor import cli, machine, packages, port, server
from edge_runtime.tools.doctor.finding import WIDTH, Finding
from edge_runtime.virtual_arm.bus import VirtualBus
from edge_runtime.virtual_arm.calibration import write_calibration
from scripts.rig.robots import watch_health
from tests.edge_runtime.tools.doctor.findings import Findings


@contextmanager
def programs(folder: Path) -> Iterator[dict[str, Any]]:
    """The virtual arm and a server with the shipped policy, both ready."""
    arm = ["virtual-arm", "--until_stdin_closes", "--http_port=0", f"--calibration_dir={folder}"]
    server = ["start", "act_so101_pick_place", f"--listen=unix:{folder}/policy.sock", "--until_stdin_closes"]
    with (
        Process("arm", ours("edge_runtime", *arm), folder) as virtual_arm,
        Process("server", ours("policy_server", *server), folder),
    ):
        with grpc.insecure_channel(f"unix:{folder}/policy.sock") as channel:
            grpc.channel_ready_future(channel).result(timeout=20)
            assert "SERVING" in watch_health(channel)
        yield virtual_arm.report()


def doctor(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edge_runtime", "doctor", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return json.load(answer)


def flags(arm: dict[str, Any], folder: Path) -> list[str]:
    cameras = [
        f"--robot.cameras.{name}.{setting}"
        for name, url in arm["cameras"].items()
        for setting in ("type=opencv", f"index_or_path={url}", "width=96", "height=96", "fps=30")
    ]
    return [
        *("--robot.type=so101_follower", f"--robot.port={arm['port']}", "--robot.id=virtual", *cameras),
        "--robot.bus_timeout_ms=100",  # the virtual servos share the machine with whatever else it does
        *(f"--robot.calibration_dir={arm['calibration_dir']}", f"--server_address=unix:{folder}/policy.sock"),
        f"--extra_state.environment_state={arm['http']}/state",
    ]


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a short name: a path is not broken, however narrow the page."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def test_a_server_of_our_own_leaves_the_page_to_the_findings() -> None:
    done = doctor("--bundle=act_so101_pick_place", "--fps=30")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "✓ reachable     a server of our own for act_so101_pick_place" in done.stdout


def test_all_is_well_and_nothing_moves(folder: Path) -> None:
    with programs(folder) as arm:
        done = doctor(*flags(arm, folder))
        frames = get(f"{arm['http']}/log")
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "✗" not in done.stdout
    seen = {line.split()[1]: line.split()[0] for line in lines if line.startswith("  ") and line[2] in "✓!–"}
    assert list(seen) == [
        *("python", "packages", "onnxruntime", "disk", "real", "jitter"),
        *("port", "servos", "supply", "temperature", "alarms", "bus", "calibration", *arm["cameras"]),
        *("reachable", "policy", "fits", "handshake", "torque"),
    ]
    by_host = {"real", "jitter", "disk", "bus", "handshake", *arm["cameras"]}  # how busy and how full it is
    assert {about for about, mark in seen.items() if mark != "✓"} <= by_host
    assert lines[-1].startswith("ready for `edge-runtime start`")
    assert max(map(len, lines)) <= WIDTH
    assert not [frame for frame in frames if "WRITE" in frame["instruction"]]
    torque = [frame["values"] for frame in frames if "Torque_Enable" in frame["registers"] and frame["values"]]
    assert len(torque) >= 12  # six servos, before and after
    assert {value["Torque_Enable"] for values in torque for value in values.values()} == {0}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "JITTER_S", 0.05)
    monkeypatch.setattr(server, "PATIENCE_S", 0.1)


@pytest.mark.usefixtures("quick")
def test_json_names_each_thing_and_the_first_failure_is_the_exit_code(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_calibration(folder, "virtual")
    with VirtualBus() as arm:
        arm.inject({"fault": "register", "ids": [2], "name": "Homing_Offset", "value": -85})
        code = cli.main(
            [
                *("--robot.type=so101_follower", f"--robot.port={arm.path}", "--robot.id=virtual", "--json"),
                *(f"--robot.calibration_dir={folder}", f"--server_address=unix:{folder}/nobody"),
            ]
        )
    report = json.loads(capsys.readouterr().out)
    assert code == report["exit_code"] == 78  # the calibration, although there is no server (69) either
    states = {finding["about"]: finding["state"] for finding in report["findings"]}
    assert states["servos"] == "ok"
    assert states["calibration"] == states["reachable"] == "failed"
    assert states["handshake"] == "skipped"
    assert {finding["exit_code"] for finding in report["findings"] if finding["state"] == "failed"} == {78, 69}
    assert all(finding["mend"] for finding in report["findings"] if finding["state"] in ("failed", "warning"))


@pytest.mark.usefixtures("quick")
def test_without_an_arm_it_looks_at_the_rest(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    code = cli.main([f"--server_address=unix:{folder}/nobody"])
    shown = capsys.readouterr().out
    assert code == 69
    assert "  – robot         none given (--robot.type, --robot.port)" in shown
    assert shown.splitlines()[-1].startswith("1 to mend before `edge-runtime start`")
    assert max(map(len, shown.splitlines())) <= WIDTH


def test_a_wrong_flag_is_one_line() -> None:
    done = doctor("--robot.type=so101_follower", "--robot.prot=x")
    assert (done.returncode, done.stdout) == (64, "")
    assert "did you mean --robot.port" in done.stderr


def test_a_finding_in_eighty_columns_keeps_what_is_to_be_copied_whole() -> None:
    path = "/dev/serial/by-id/usb-1a86_USB_Single_Serial_58FA083324-if00"
    finding = Finding("arm", "port", "failed", f"{path} is in use by another program", f"--robot.port={path}")
    lines = str(finding).splitlines()
    assert lines[0].startswith(f"  ✗ port          {path}"[:WIDTH])
    assert lines[-1] == f"                  → --robot.port={path}"


def test_what_a_peer_said_does_not_reach_the_terminal_as_it_is() -> None:
    assert "\x1b" not in str(Finding("server", "policy", "ok", "act\x1b[2J\x07"))


def test_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    versions = {"onnxruntime": "", "onnxruntime-gpu": ""}
    monkeypatch.setattr(packages, "_version", lambda package: versions.get(package, "1.0"))
    assert packages._onnxruntime(needed=False, root=tmp_path).state == "skipped"
    missing = packages._onnxruntime(needed=True, root=tmp_path)
    assert (missing.state, missing.exit_code) == ("failed", 78)
    assert missing.mend.startswith(extras.install("server"))
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nv_tegra_release").touch()
    assert "JetPack" in packages._onnxruntime(needed=True, root=tmp_path).mend
    versions.update({"onnxruntime": "1.2", "onnxruntime-gpu": "1.2"})
    assert "break each other" in packages._onnxruntime(needed=True, root=tmp_path).said
    monkeypatch.setitem(packages.IMPORTED, "no_such_module", "no-such-package")
    found = Findings(packages.examine(needs_model=False))
    assert found.result is False
    (failed,) = [finding for finding in found.all if finding.state == "failed"]
    assert failed.mend == "pip install --upgrade no-such-package"


def test_brltty_which_takes_the_adapter_away_is_known(tmp_path: Path) -> None:
    assert port.Owner(7, "brltty", "brltty").mend.startswith("sudo apt remove brltty")
    (tmp_path / "7").mkdir()
    (tmp_path / "7/comm").write_text("brltty\n")
    assert port.runs("brltty", tmp_path)
    assert not port.runs("ModemManager", tmp_path)
