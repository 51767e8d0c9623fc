"""What systemd hears, on a real datagram socket: from the notifier, and from both programs as they run."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edge_runtime.motors.calibration import JOINTS
from edge_runtime.program.notify import Notifier
from edge_runtime.virtual_arm.bus import VirtualBus
from edge_runtime.virtual_arm.calibration import write_calibration
from edge_runtime.wire.messages import Joint, Policy
from scripts.rig.bundles import write_bundle
from tests.edge_runtime.link.scripted_server import ScriptedServer
from tests.policy_server.conftest import serving

UNITS = ["degrees"] * 5 + ["percent"]
POLICY = Policy(
    "still",
    "act",
    bytes(32),
    tuple(Joint(f"{name}.pos", unit) for name, unit in zip(JOINTS, UNITS, strict=True)),
    (),
    (),
    chunk_size=10,
    fps=30.0,
)


class Manager:
    """systemd's end of the socket."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(20)
        self._socket.bind(str(path))
        self.environ = {"NOTIFY_SOCKET": str(path)}

    def hear(self) -> str:
        return self._socket.recv(4096).decode()

    def hear_until(self, wanted: str) -> list[str]:
        heard = [self.hear()]
        while heard[-1] != wanted:
            heard.append(self.hear())
        return heard

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    manager = Manager(tmp_path / "notify")
    yield manager
    manager.close()


def test_words_arrive_one_datagram_each(manager: Manager) -> None:
    notifier = Notifier(manager.environ)
    notifier.ready()
    notifier.status("two\nlines")
    notifier.stopping(75)
    assert [manager.hear() for _ in range(3)] == ["READY=1", "STATUS=two lines", "STOPPING=1"]


def test_a_sign_of_life_is_sent_once_in_a_quarter_of_the_watchdogs_patience(manager: Manager) -> None:
    now_s = [100.0]
    notifier = Notifier(manager.environ | {"WATCHDOG_USEC": "2000000"}, clock=lambda: now_s[0])
    assert notifier.watchdog_s == 2.0
    for _ in range(11):  # a second in steps of 0.1
        notifier.alive()
        now_s[0] += 0.1
    notifier.status("end")
    assert manager.hear_until("STATUS=end") == ["WATCHDOG=1", "WATCHDOG=1", "STATUS=end"]


def test_the_watchdog_waits_for_the_arm_to_come_to_rest(manager: Manager) -> None:
    Notifier(manager.environ | {"WATCHDOG_USEC": "2000000"}).stopping(75.0)
    assert manager.hear() == "STOPPING=1\nWATCHDOG_USEC=75000000"


def test_the_watchdog_waits_for_a_stop_policy_and_then_as_before(manager: Manager) -> None:
    notifier = Notifier(manager.environ | {"WATCHDOG_USEC": "2000000"})
    notifier.busy(75)
    notifier.busy()
    assert [manager.hear() for _ in range(2)] == [
        "WATCHDOG=1\nWATCHDOG_USEC=75000000",
        "WATCHDOG=1\nWATCHDOG_USEC=2000000",
    ]


@pytest.mark.parametrize("others", [{}, {"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "x"}])
def test_without_a_watchdog_of_ours_there_is_no_sign_of_life(manager: Manager, others: dict[str, str]) -> None:
    notifier = Notifier(manager.environ | others)
    notifier.alive()
    notifier.status("end")
    assert notifier.watchdog_s == 0
    assert manager.hear() == "STATUS=end"


def test_children_do_not_inherit_the_socket(manager: Manager) -> None:
    environ = manager.environ | {"WATCHDOG_USEC": "1", "WATCHDOG_PID": str(os.getpid()), "HOME": "/"}
    Notifier(environ)
    assert environ == {"HOME": "/"}


def test_a_name_that_is_no_file(tmp_path: Path) -> None:
    name = f"\0edge-runtime-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(name)
        receiver.settimeout(20)
        Notifier({"NOTIFY_SOCKET": name.replace("\0", "@")}).ready()
        assert receiver.recv(100) == b"READY=1"


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": "/nobody/listens"}])
def test_nobody_listening_is_no_failure(environ: dict[str, str]) -> None:
    notifier = Notifier(environ)
    notifier.ready()
    notifier.alive()


@contextmanager
def running(arm: VirtualBus, manager: Manager, folder: Path, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """`edge-runtime start` as systemd starts it, with a watchdog of 0.4 s; dies with the test."""
    write_calibration(folder, "virtual")
    command = [sys.executable, "-m", "edge_runtime", "start", "--robot.type=so101_follower", *flags]
    command += ["--robot.bus_timeout_ms=100"]  # the servos share the machine with whatever else it does
    command += [f"--robot.port={arm.path}", "--robot.id=virtual", f"--robot.calibration_dir={folder}"]
    environ = os.environ | manager.environ | {"WATCHDOG_USEC": "400000"}
    with subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def test_the_runtime_is_ready_alive_and_stopping(manager: Manager, tmp_path: Path) -> None:
    server = ScriptedServer(policy=POLICY, answer=lambda observation: None)
    with VirtualBus() as arm, running(arm, manager, tmp_path, f"--server_address={server.address}") as process:
        assert manager.hear() == "READY=1"
        arm.log.wait_for(lambda entry: entry in arm.log.writes("Torque_Enable"), 20)
        ticking = [manager.hear() for _ in range(6)]
        process.send_signal(signal.SIGTERM)
        assert manager.hear_until("STOPPING=1\nWATCHDOG_USEC=75000000")
        assert manager.hear() == "STATUS=stopping"
        assert process.wait(20) == 0
    server.kill()
    assert ticking == ["WATCHDOG=1"] * 6


def test_the_runtime_lives_while_it_waits_for_a_server(manager: Manager, tmp_path: Path) -> None:
    nobody = f"--server_address=unix:{tmp_path}/none"
    with VirtualBus() as arm, running(arm, manager, tmp_path, nobody, "--give_up_after_s=0") as process:
        assert [manager.hear() for _ in range(4)] == ["READY=1", *["WATCHDOG=1"] * 3]
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert not arm.log.writes("Torque_Enable")


def test_the_server_is_ready_once_warm_and_lives_while_it_works(
    manager: Manager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (manager.environ | {"WATCHDOG_USEC": "200000"}).items():
        monkeypatch.setenv(name, value)
    with serving(write_bundle(tmp_path / "tiny")) as server:
        assert manager.hear() == "READY=1"
        assert manager.hear() == f"STATUS=serving [tiny] on {server.address}"
        assert [manager.hear() for _ in range(3)] == ["WATCHDOG=1"] * 3
    assert manager.hear_until("STOPPING=1\nWATCHDOG_USEC=30000000")
