"""`policy-server start` as a process: SIGHUP reads certificates and tokens again, and nothing else changes."""

from __future__ import annotations

import grp
import os
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_runtime.errors import AccessError
from edge_runtime.link.channel import Access
from edge_runtime.wire.messages import Chunk
from policy_server import bundle
from scripts.rig.robots import Robot, hello_to, look
from tests.policy_server.test_program import TIMEOUT_S, address_of, refused, started
from tests.security.conftest import describe, robot_tls

Tokens = Callable[..., Path]


def hang_up(process: subprocess.Popen[str], until: str) -> None:
    """Send SIGHUP, and wait for a line that has `until` in it."""
    process.send_signal(signal.SIGHUP)
    assert process.stderr is not None
    for line in process.stderr:
        if until in line:
            return
    raise AssertionError(f"ended with {process.wait()}")


def test_tokens_are_read_again(tiny: Path, token_file: Tokens) -> None:
    server_side = token_file("the-old-token-of-the-lab")
    old = token_file("the-old-token-of-the-lab", name="old")
    new = token_file("the-new-token-of-the-lab", name="new")
    with started(tiny, "--listen=127.0.0.1:0", f"--token_file={server_side}") as process:
        address = address_of(process)
        describe(Access(address, token_file=old))
        with pytest.raises(AccessError):
            describe(Access(address, token_file=new))
        server_side.chmod(0o644)
        hang_up(process, "not reloaded, what was read before stays: token_file: ")
        describe(Access(address, token_file=old))
        server_side.chmod(0o600)
        server_side.write_text("the-new-token-of-the-lab\n")
        hang_up(process, "tokens: 1 in ")
        describe(Access(address, token_file=new))
        with pytest.raises(AccessError):
            describe(Access(address, token_file=old))


def test_certificates_are_read_again(tiny: Path, certs: Path, strangers: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    shutil.copytree(certs, mine)
    flags = (f"--tls.cert={mine}/server.crt", f"--tls.key={mine}/server.key", f"--tls.client_ca={mine}/ca.crt")
    with started(tiny, "--listen=127.0.0.1:0", *flags) as process:
        address = address_of(process)
        describe(Access(address, tls=robot_tls(certs)))
        for name in ("server.crt", "server.key", "ca.crt"):
            shutil.copy(strangers / name, mine)
        hang_up(process, "TLS: certificate of ")
        describe(Access(address, tls=robot_tls(strangers)))
        with pytest.raises(AccessError, match="is not signed by"):
            describe(Access(address, tls=robot_tls(certs)))


def test_a_robot_reads_its_files_at_each_connection(token_file: Tokens) -> None:
    path = token_file("the-old-token-of-the-lab")
    access = Access("127.0.0.1:1", token_file=path)
    path.write_text("the-new-token-of-the-lab\n")
    access.open().close()
    assert access.metadata == (("authorization", "Bearer the-new-token-of-the-lab"),)
    path.unlink()
    access.open().close()
    assert access.metadata == (("authorization", "Bearer the-new-token-of-the-lab"),)


def test_a_hang_up_without_files_changes_nothing(tiny: Path) -> None:
    policy = bundle.load(tiny).policy
    with started(tiny, "--listen=127.0.0.1:0") as process:
        with Robot(address_of(process), hello_to(policy)) as robot:
            robot.welcomed()
            process.send_signal(signal.SIGHUP)
            assert isinstance(robot.ask(look(1)), Chunk)
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0


def test_a_unix_socket_is_its_owners_or_a_groups(tiny: Path, tmp_path: Path) -> None:
    group = grp.getgrgid(os.getgid()).gr_name
    path = tmp_path / "policy.sock"
    for flags, mode in (((), 0o600), ((f"--socket_group={group}",), 0o660)):
        with started(tiny, f"--listen=unix:{path}", *flags) as process:
            describe(Access(address_of(process)))
            assert stat.S_IMODE(path.stat().st_mode) == mode
            assert path.group() == group
    code, said = refused(tiny, f"--listen=unix:{path}", "--socket_group=nosuchgroup")
    assert (code, said) == (78, "policy-server: socket_group: there is no group 'nosuchgroup'")
    code, said = refused(tiny, "--socket_group=root")
    assert (code, said) == (78, "policy-server: socket_group: 127.0.0.1:8080 is not a Unix socket")
