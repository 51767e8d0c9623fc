"""`policy-server start` as a process: one line and the right exit code for each thing that can be wrong."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from edge_runtime.wire.messages import Chunk, Replaced
from policy_server import bundle
from scripts.rig.bundles import write_bundle
from scripts.rig.robots import Robot, hello_to, look, status_of

TIMEOUT_S = 120  # longer than any machine takes


@contextmanager
def started(*arguments: str | Path, stdin: int = subprocess.DEVNULL) -> Iterator[subprocess.Popen[str]]:
    """A server that ends with the test."""
    process = subprocess.Popen(
        [sys.executable, "-m", "policy_server", "start", *map(str, arguments)],
        stdin=stdin,
        stderr=subprocess.PIPE,
        text=True,
    )
    guard = threading.Timer(TIMEOUT_S, process.kill)
    guard.start()
    try:
        yield process
    finally:
        guard.cancel()
        process.kill()
        process.communicate()


def address_of(process: subprocess.Popen[str]) -> str:
    """Where it serves, once it does."""
    assert process.stderr is not None
    for line in process.stderr:
        if "serving [" in line:
            return line.rsplit(" on ", 1)[1].strip()
    raise AssertionError(f"ended with {process.wait()}")


def refused(*arguments: str | Path) -> tuple[int, str]:
    """Exit code and the one line that was said."""
    with started(*arguments) as process:
        _, said = process.communicate(timeout=TIMEOUT_S)
        lines = said.splitlines()
        assert len(lines) == 1, said
        assert lines[0].startswith("policy-server: ")
        return process.returncode, lines[0]


def test_it_serves_until_sigterm(tiny: Path) -> None:
    policy = bundle.load(tiny).policy
    with started(tiny, "--listen=127.0.0.1:0") as process:
        with Robot(address_of(process), hello_to(policy)) as robot:
            assert isinstance(robot.welcomed().ask(look(1)), Chunk)
            process.send_signal(signal.SIGTERM)
            assert status_of(robot) == (grpc.StatusCode.UNAVAILABLE, "the server is stopping")
        assert process.wait(TIMEOUT_S) == 0


def test_several_bundles_on_a_unix_socket_of_its_owner(tiny: Path, seeing: Path, tmp_path: Path) -> None:
    path = tmp_path / "policy.sock"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))  # what a killed server leaves behind
    stale.close()
    policy = bundle.load(tiny).policy
    with started(seeing, tiny, f"--listen=unix:{path}", "--providers=cpu") as process:
        assert address_of(process) == f"unix:{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with Robot(f"unix:{path}", hello_to(policy)) as robot:
            assert isinstance(robot.welcomed().ask(look(1)), Chunk)
        code, said = refused(tiny, f"--listen=unix:{path}")
        assert (code, said) == (73, f"policy-server: listen: unix:{path}: address already in use")
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 0
    assert not path.exists()


def test_it_ends_with_whoever_holds_its_stdin(tiny: Path) -> None:
    arguments = (tiny, "--listen=127.0.0.1:0", "--until_stdin_closes=true")
    with started(*arguments, stdin=subprocess.PIPE) as process:
        address_of(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(TIMEOUT_S) == 0
        process.stdin = None


def test_an_address_in_use_is_refused(tiny: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert refused(tiny, f"--listen=127.0.0.1:{port}") == (
            73,
            f"policy-server: listen: 127.0.0.1:{port}: address already in use",
        )


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["--listen=0.0.0.0:0"], 78, "listen: 0.0.0.0:0 can be reached from other machines"),
        (["--listen=127.0.0.1"], 78, "listen: '127.0.0.1' is not HOST:PORT or unix:/path"),
        (["--providers=cuda"], 78, "providers: wanted CUDAExecutionProvider, got an onnxruntime with "),
        (["--providers=rocm"], 78, "rocm"),
        (["--max_batch=0"], 78, "max_batch: 0 is not in 1..1024"),
        (["--max_sesions=3"], 64, "--max_sessions"),
        (["no_such_bundle"], 64, "no_such_bundle is neither a folder nor a shipped bundle"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
@pytest.mark.skipif("CUDAExecutionProvider" in __import__("onnxruntime").get_available_providers(), reason="has CUDA")
def test_a_wrong_command_line_is_refused(tiny: Path, flags: list[str], code: int, said: str) -> None:
    got, line = refused(tiny, "--listen=127.0.0.1:0", *flags)
    assert got == code
    assert said in line


def test_a_folder_of_bundles_is_offered_by_name_after_those_that_were_named(tiny: Path, tmp_path: Path) -> None:
    for name in ("b", "a"):
        write_bundle(tmp_path / name, name=name)
    (tmp_path / "notes.txt").write_text("no bundle")
    with started(tiny, "--listen=127.0.0.1:0", f"--model_dir={tmp_path}") as process:
        assert process.stderr is not None
        assert any("serving [tiny, a, b] on " in line for line in process.stderr)
    code, line = refused(f"--model_dir={tmp_path / 'a'}")
    assert code == 64
    assert "model_dir: " in line
    assert "has no folder with a manifest.json" in line


def test_models_of_a_running_server_are_told_from_another_process(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    new = write_bundle(tmp_path / "new", bias=7.0)
    with started(tiny, "--listen=127.0.0.1:0", f"--admin_socket={path}") as process:
        policy = bundle.load(tiny).policy
        with Robot(address_of(process), hello_to(policy)) as robot:
            robot.welcomed()
            told = subprocess.run(
                [sys.executable, "-m", "policy_server", "models", "replace", "new", f"--admin_socket={path}"],
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                cwd=tmp_path,
            )
            assert (told.returncode, told.stderr) == (0, "")
            assert robot.receive() == Replaced(bundle.load(new).policy)
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0
    assert not path.exists()


def test_two_bundles_of_one_name_are_refused(tiny: Path) -> None:
    code, line = refused(tiny, tiny)
    assert code == 64
    assert "is named 'tiny', as is another bundle" in line


def test_a_damaged_bundle_is_refused(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "damaged")
    os.truncate(folder / "policy.onnx", 100)
    code, line = refused(folder)
    assert code == 65
    assert "policy.onnx: has 100 bytes, the manifest says" in line


def test_beyond_loopback_it_says_so_each_time(tiny: Path) -> None:
    with started(tiny, "--listen=0.0.0.0:0", "--insecure") as process:
        assert process.stderr is not None
        assert "WARNING policy_server.server: 0.0.0.0:" in process.stderr.readline()
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0


def test_importing_it_leaves_the_root_logger_alone() -> None:
    code = (
        "import logging, policy_server.server, policy_server.cli, sys;"
        "root = logging.getLogger(); sys.exit(bool(root.handlers) or root.level != logging.WARNING)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
