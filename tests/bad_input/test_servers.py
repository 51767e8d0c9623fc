"""Servers that are not there, say nothing, or offer something else; and what keeps a server from serving."""

from __future__ import annotations

import os
import shutil
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from edge_runtime.link import diagnosis
from edge_runtime.link.channel import Access
from edge_runtime.wire import codec, policy_pb2
from edge_runtime.wire.messages import Camera, ExtraState, Joint, ServerDescription
from policy_server import bundle
from tests.bad_input.conftest import Answer, open_to_all
from tests.bad_input.test_files import user
from tests.edge_runtime.link.scripted_server import JOINTS, POLICY, ScriptedServer

ROBOT = ("--robot.type=none", "--robot.joints={a.pos: degrees, b.pos: degrees}", "--status=false")
SERVE = "policy-server start"


@pytest.fixture
def start(answer: Answer) -> Callable[..., tuple[int, str]]:
    """`start` against the server at `address`."""

    def run(address: str, *flags: str) -> tuple[int, str]:
        return answer("edge-runtime start", *ROBOT, "--give_up_after_s=0.1", f"--server_address={address}", *flags)

    return run


@contextmanager
def scripted(**changes: Any) -> Iterator[ScriptedServer]:
    server = ScriptedServer(**changes)
    try:
        yield server
    finally:
        server.kill()


# None, or one that says nothing.


def test_nobody_at_the_address(start: Callable[..., tuple[int, str]]) -> None:
    code, said = start("127.0.0.1:9")
    assert code == 69
    assert said.startswith("server_address: 127.0.0.1:9 is not available: connection refused (for ")
    assert said.endswith(" s: give_up_after_s)")


def test_a_name_that_nobody_has(start: Callable[..., tuple[int, str]]) -> None:
    code, said = start("gpu-box.invalid:8080", "--insecure")
    assert code == 69
    assert said.startswith("server_address: gpu-box.invalid:8080 is not available: ")


def test_a_socket_that_is_not_there(start: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    code, said = start(f"unix:{tmp_path}/s")
    assert code == 69
    assert said.startswith(f"server_address: unix:{tmp_path}/s is not available: no such file or directory ")


def test_silent_after_accepting(start: Callable[..., tuple[int, str]]) -> None:
    """A listener that takes the connection, and nothing more."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        code, said = start(address)
    assert code == 69
    assert said.startswith(f"server_address: {address} does not answer (for ")


SAYS = {
    "a web server": (b"HTTP/1.1 400 Bad Request\r\n\r\n", 69, "is a web server, not a policy server"),
    "the virtual arm": (b"<!DOCTYPE HTML>\n", 69, "is a web server, not a policy server"),
    "something else": (b"SSH-2.0-OpenSSH_9.2\r\n", 69, "is not a policy server: it does not speak HTTP/2"),
    "nothing": (b"", 69, "closes the connection"),
    "half a word": (b"\0", 69, "does not answer"),
    "a busy server": (bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)), 69, "does not answer"),
    "a TLS server": (b"\x15\x03\x01\0\x02\x02\x28", 77, "refused: it speaks TLS, and this robot does not: set tls.ca"),
}


@pytest.mark.parametrize("who", SAYS)
def test_who_it_is_that_is_no_policy_server(who: str) -> None:
    """Whatever it hears, it says its word and ends the connection."""
    word, code, said = SAYS[who]

    class Says(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):  # they have left
                self.request.recv(1)
                self.request.sendall(word)
                self.request.shutdown(socket.SHUT_WR)
                while self.request.recv(1 << 16):
                    pass

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Says) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            access = Access(f"127.0.0.1:{server.server_address[1]}")
            error = diagnosis.explain(access)
        finally:
            server.shutdown()
            thread.join()
    assert str(error) == f"{access.address} {said}"
    assert error.exit_code == code


def test_silent_after_the_handshake(start: Callable[..., tuple[int, str]]) -> None:
    """A server that describes itself and then never welcomes."""
    with scripted(silent=True) as server:
        code, said = start(server.address)
    assert code == 69
    assert said.startswith(f"server_address: {server.address}: no welcome from the server (for ")


def test_a_server_of_another_kind(start: Callable[..., tuple[int, str]]) -> None:
    """It speaks gRPC, but not about policies."""
    from concurrent import futures

    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        code, said = start(f"127.0.0.1:{port}")
    finally:
        server.stop(None).wait()
    assert code == 76
    assert said.startswith(f"127.0.0.1:{port} refused: ")


# With another policy.

OTHERS: dict[str, tuple[Any, tuple[str, ...], str]] = {
    "model": (POLICY, ("--model=scriptd",), "model: the server has no 'scriptd' (it offers scripted"),
    "names": (
        replace(POLICY, joints=(Joint("x", "degrees"), Joint("y", "degrees"))),
        (),
        "robot and policy scripted do not fit: joints: robot [a.pos, b.pos], policy [x, y]",
    ),
    "order": (
        replace(POLICY, joints=JOINTS[::-1]),
        (),
        "robot and policy scripted do not fit: joints: robot [a.pos, b.p",
    ),
    "dimension": (
        replace(POLICY, joints=(*JOINTS, Joint("c", "m"))),
        (),
        "robot and policy scripted do not fit: joints: ",
    ),
    "units": (
        replace(POLICY, joints=(JOINTS[0], Joint("b.pos", "radians"))),
        (),
        "robot and policy scripted do not fit: unit of b.pos: robot degrees, policy radians",
    ),
    "fps": (replace(POLICY, fps=50.0), (), "robot and policy scripted do not fit: fps: robot 30, policy 50"),
    "camera missing": (
        replace(POLICY, cameras=(Camera("front", 48, 64),)),
        (),
        "robot and policy scripted do not fit: cameras: robot [], policy [front] (--robot.cameras.front.type=opencv",
    ),
    "camera of another size": (
        replace(POLICY, cameras=(Camera("front", 48, 64),)),
        ("--robot.cameras.front.type=synthetic",),
        "robot and policy scripted do not fit: camera front: robot sends 640x480, policy takes 64x48 (--resize=true",
    ),
    "extra state": (
        replace(POLICY, extra_state=(ExtraState("observation.environment_state", 5),)),
        ("--extra_state.environment_state=constant:1,2",),
        "robot and policy scripted do not fit: observation.environment_state: robot has 2, policy takes 5 numbers",
    ),
    "chunk": (
        POLICY,
        ("--actions_per_chunk=11",),
        "robot and policy scripted do not fit: actions_per_chunk: robot 11, ",
    ),
    "no camera to compare": (
        POLICY,
        ("--similarity=joint+image",),
        "similarity: joint+image, but policy scripted has no",
    ),
    "limits of another robot": (
        POLICY,
        ("--robot.max_relative_target={a: 5, c.pos: 5}",),
        "robot.max_relative_target.c.pos: is no joint of it; expected one of a, b",
    ),
}
CONFIG = ("no camera to compare", "limits of another robot")


@pytest.mark.parametrize("case", OTHERS)
def test_another_policy(start: Callable[..., tuple[int, str]], case: str) -> None:
    policy, flags, said = OTHERS[case]
    with scripted(policy=policy) as server:
        code, line = start(server.address, *flags)
        assert not server.hellos  # refused before it was asked for anything
    assert line.startswith(said)
    assert code == (78 if case in CONFIG else 76)


def test_another_protocol_version(start: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    def describe(self: object, request: object, context: object) -> policy_pb2.ServerDescription:
        return codec.encode_description(ServerDescription(2, "9.9", (POLICY,)))

    monkeypatch.setattr(ScriptedServer, "Describe", describe)
    with scripted() as server:
        code, said = start(server.address)
    assert (code, said) == (76, "protocol version: robot 1, server 2")


# What keeps a server from serving.

LISTEN = {
    "no port": ("127.0.0.1", 78, "listen: '127.0.0.1' is not HOST:PORT or unix:/path"),
    "no number": ("127.0.0.1:http", 78, "listen: '127.0.0.1:http' is not HOST:PORT or unix:/path"),
    "no address": ("256.0.0.1:80", 78, "listen: '256.0.0.1' is not an address and does not resolve"),
    "not ours": ("192.0.2.1:0", 73, "listen: 192.0.2.1:0: cannot assign requested address"),
    "everywhere": ("0.0.0.0:0", 78, "listen: 0.0.0.0:0 can be reached from other machines"),
    "no path": ("unix:sock", 78, "listen: 'unix:sock' is not unix:/PATH of at most 107 bytes"),
    "a long path": ("unix:/" + "x" * 107, 78, "listen: 'unix:/xxx"),
}


@pytest.mark.parametrize("case", LISTEN)
def test_where_it_cannot_listen(answer: Answer, case: str) -> None:
    address, code, said = LISTEN[case]
    insecure = ["--insecure"] if case == "not ours" else []
    got, line = answer(SERVE, "act_so101_pick_place", f"--listen={address}", *insecure)
    assert line.startswith(said)
    assert got == code


@pytest.mark.parametrize("setting", ["listen", "metrics_port", "http_port"])
def test_a_port_in_use(answer: Answer, setting: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        if setting == "http_port":
            code, said = answer("edge-runtime virtual-arm", "--cameras=[]", f"--http_port={port}")
        else:
            where = {"listen": [f"--listen=127.0.0.1:{port}"], "metrics_port": [f"--metrics_port={port}"]}[setting]
            code, said = answer(SERVE, "act_so101_pick_place", "--listen=127.0.0.1:0", *where)
    assert code == 73
    assert said.startswith(f"{setting}: ")
    assert f"127.0.0.1:{port}: address already in use" in said.lower()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can tell who may use a low port, and become who may not")
def test_a_port_that_is_not_permitted(answer: Answer, tmp_path: Path) -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text())
    if first <= 80:
        pytest.skip(f"ports from {first} on are everybody's here")
    shutil.copytree(bundle.SHIPPED / "act_so101_pick_place", tmp_path / "bundle")
    open_to_all(tmp_path)
    with user(ordinary=True):
        code, said = answer(SERVE, f"{tmp_path}/bundle", "--listen=127.0.0.1:80")
    assert (code, said) == (73, "listen: 127.0.0.1:80: permission denied")


BUNDLES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a file is gone": (lambda b: (b / "policy.onnx").unlink(), "{bundle}/policy.onnx: cannot be read (No such file or"),
    "a file is short": (
        lambda b: os.truncate(b / "policy.onnx", 100),
        "{bundle}/policy.onnx: has 100 bytes, the manifest",
    ),
    "a byte is wrong": (lambda b: flip(b / "policy.onnx"), "{bundle}/policy.onnx: is damaged (sha256 "),
    "a file is a folder": (
        lambda b: ((b / "policy.onnx").unlink(), (b / "policy.onnx").mkdir()),
        "{bundle}/policy.onnx: cannot be read (Is a directory)",
    ),
    "a file is a pipe": (
        lambda b: ((b / "policy.onnx").unlink(), os.mkfifo(b / "policy.onnx")),
        "{bundle}/policy.onnx: cannot be read (Not a regular file)",
    ),
    "the manifest is a pipe": (
        lambda b: ((b / "manifest.json").unlink(), os.mkfifo(b / "manifest.json")),
        "{bundle}/manifest.json: cannot be read: Not a regular file",
    ),
    "another version": (
        lambda b: put(b, '"format": 1', '"format": 3'),
        "{bundle}/manifest.json: format: 3 is not one of 1, 2",
    ),
    "another type": (
        lambda b: put(b, '"type": "act"', '"type": "atc"'),
        "{bundle}/manifest.json: type: 'atc' is not one of [act, graph, flow, smolvla, pi0, pi05, diffusion]; did you "
        "mean act?",
    ),
    "half a manifest": (
        lambda b: os.truncate(b / "manifest.json", 700),
        "{bundle}/manifest.json: is not JSON: line ",
    ),
}


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def put(folder: Path, old: str, new: str) -> None:
    manifest = folder / "manifest.json"
    text = manifest.read_text()
    assert old in text
    manifest.write_text(text.replace(old, new))


@pytest.mark.parametrize("case", BUNDLES)
def test_a_bundle(answer: Answer, tmp_path: Path, case: str) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(bundle.SHIPPED / "act_so101_pick_place", folder)
    spoil, said = BUNDLES[case]
    spoil(folder)
    code, line = answer(SERVE, str(folder), "--listen=127.0.0.1:0")
    assert line.startswith(said.format(bundle=folder))
    assert code == 65
