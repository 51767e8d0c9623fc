"""Models come, change and go while robots run them: over the admin socket, as `policy-server models` does."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import grpc
import numpy as np
import pytest

from edge_runtime.errors import OutputError
from edge_runtime.program import flags
from edge_runtime.wire.messages import Chunk, Pace, Policy, Replaced, Welcome
from policy_server import bundle
from policy_server.admin import client as admin_client
from policy_server.admin.service import Admin
from policy_server.config import LimitsConfig
from policy_server.engines.providers import NAMES
from policy_server.server import PolicyServer
from policy_server.serving.models import Models
from scripts.rig.bundles import write_bundle
from scripts.rig.robots import Robot, hello_to, look, refusal, status_of
from tests.policy_server.conftest import Engines, HeldEngine, serving

BIAS = 100.0


@pytest.fixture(scope="module")
def biased(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `tiny`, but each answer is greater by BIAS."""
    return write_bundle(tmp_path_factory.mktemp("bundles") / "biased", bias=BIAS)


@pytest.fixture
def policy(tiny: Path) -> Policy:
    return bundle.load(tiny).policy


@pytest.fixture
def new(biased: Path) -> Policy:
    return bundle.load(biased).policy


@pytest.fixture
def socket_path(tmp_path: Path) -> Path:
    return tmp_path / "admin.sock"


@pytest.fixture
def server(tiny: Path, engines: Engines, socket_path: Path) -> Iterator[PolicyServer]:
    flood = LimitsConfig(observations_per_second=0)
    with serving(tiny, admin_socket=socket_path, limits=flood) as server:
        yield server


def models(path: Path, *words: str | Path) -> int:
    return flags.run_main(admin_client.main, [*map(str, words), f"--admin_socket={path}"], "policy-server")


def bias_of(chunk: Chunk, state: float) -> float:
    """What the bundle that answered adds."""
    assert np.ptp(chunk.actions[0]) == 0
    return float(chunk.actions[0, 0]) - state


def test_a_replacement_takes_over_between_two_batches_and_the_robot_hears_so_first(
    server: PolicyServer, engines: Engines, policy: Policy, new: Policy, biased: Path, socket_path: Path
) -> None:
    with Robot(server.address, hello_to(policy)) as robot, ThreadPoolExecutor(1) as operator:
        old = engines.loads.get(timeout=60)
        old.gate.clear()
        robot.welcomed().send(look(1))
        old.sizes.get(timeout=60)  # in the midst of a batch
        replaced = operator.submit(models, socket_path, "replace", biased)
        robot.send(look(2, timestep=9, state=5.0))  # waits, and is run by the new one
        assert engines.loads.get(timeout=60).warmed.wait(60)
        assert not replaced.done()
        old.gate.set()
        assert replaced.result(60) == 0
        first, announced, second = (robot.receive() for _ in range(3))
    assert isinstance(first, Chunk)
    assert (first.observation, first.digest, bias_of(first, 0.0)) == (1, policy.digest, 0.0)
    assert announced == Replaced(new)
    assert isinstance(second, Chunk)
    assert (second.observation, second.digest, bias_of(second, 5.0)) == (2, new.digest, BIAS)


def test_under_load_each_chunk_is_of_the_bundle_that_was_announced_last(
    server: PolicyServer, policy: Policy, new: Policy, tiny: Path, biased: Path, socket_path: Path
) -> None:
    adds = {policy.digest: 0.0, new.digest: BIAS}
    done, all_there = threading.Event(), threading.Barrier(5)

    def converse(base: float) -> int:
        announced = [policy.digest]
        with Robot(server.address, hello_to(policy)) as robot:
            robot.welcomed()
            all_there.wait(20)  # who comes after a replacement is not told of it
            id = 0
            while not (done.is_set() and len(announced) == 5):
                id += 1
                robot.send(look(id, timestep=id, state=base + id % 8))
                while isinstance(message := robot.receive(), Replaced):
                    announced.append(message.policy.digest)
                assert isinstance(message, Chunk)
                assert (message.observation, message.digest) == (id, announced[-1])
                assert bias_of(message, base + id % 8) == adds[message.digest]
        return id

    with ThreadPoolExecutor(4) as pool:
        robots = [pool.submit(converse, 1000.0 * number) for number in range(1, 5)]
        all_there.wait(20)
        for path in (biased, tiny, biased, tiny):
            assert models(socket_path, "replace", path) == 0
        done.set()
        assert all(robot.result(60) > 4 for robot in robots)


def test_a_robot_that_comes_during_a_replacement_is_welcomed_to_what_it_gets(
    server: PolicyServer, policy: Policy, tiny: Path, biased: Path, socket_path: Path
) -> None:
    over = threading.Event()

    def come_and_go() -> int:
        came = 0
        while not over.is_set():
            with Robot(server.address, hello_to(policy)) as robot:
                welcome = robot.receive()
                assert isinstance(welcome, Welcome)
                digest = welcome.policy.digest
                robot.send(look(1))
                while isinstance(message := robot.receive(), Replaced):
                    digest = message.policy.digest
                assert message.digest == digest  # type: ignore[union-attr]
                came += 1
        return came

    with ThreadPoolExecutor(2) as pool:
        robots = [pool.submit(come_and_go) for _ in range(2)]
        for path in (biased, tiny) * 4:
            assert models(socket_path, "replace", path) == 0
        over.set()
        assert all(robot.result(60) for robot in robots)


def test_a_bundle_that_fails_its_check_changes_nothing(
    server: PolicyServer,
    policy: Policy,
    biased: Path,
    socket_path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    damaged = shutil.copytree(biased, tmp_path / "damaged")
    os.truncate(damaged / "policy.onnx", 100)
    lying = write_bundle(tmp_path / "lying", chunk=4, chunk_size=5)  # the graph gives another shape
    with Robot(server.address, hello_to(policy)) as robot:
        robot.welcomed()
        for path, said in ((damaged, "has 100 bytes"), (lying, "which the manifest says"), ("/no/such", "neither")):
            assert models(socket_path, "replace", path) in (64, 65)
            assert said in capsys.readouterr().err
        chunk = robot.ask(look(1))
        assert (chunk.digest, bias_of(chunk, 0.0)) == (policy.digest, 0.0)


def test_a_replacement_does_not_move_from_the_gpu_to_the_cpu(
    tiny: Path,
    biased: Path,
    policy: Policy,
    engines: Engines,
    socket_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(HeldEngine, "provider", NAMES["cuda"])
    with serving(tiny, admin_socket=socket_path) as server, Robot(server.address, hello_to(policy)) as robot:
        robot.welcomed()
        monkeypatch.setattr(HeldEngine, "provider", NAMES["cpu"])  # as `auto` does where the memory is full
        assert models(socket_path, "replace", biased) == 78
        assert (
            "tiny runs on CUDAExecutionProvider, the replacement would on CPUExecutionProvider"
            in capsys.readouterr().err
        )
        assert bias_of(robot.ask(look(1)), 0.0) == 0.0
        monkeypatch.setattr(HeldEngine, "provider", NAMES["cuda"])
        assert models(socket_path, "replace", biased) == 0


def test_a_replacement_that_does_not_fit_ends_the_sessions_with_the_reason(
    server: PolicyServer, policy: Policy, socket_path: Path, tmp_path: Path
) -> None:
    other = write_bundle(tmp_path / "other", joints=[{"name": f"{j}.pos", "unit": "radians"} for j in "abc"])
    with Robot(server.address, hello_to(policy)) as robot:
        robot.welcomed()
        assert models(socket_path, "replace", other) == 0
        code, reason = status_of(robot)
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert reason.startswith("tiny was replaced by one that does not fit: joints: robot [shoulder.pos, ")
    with Robot(server.address, hello_to(bundle.load(other).policy)) as robot:
        assert isinstance(robot.welcomed().ask(look(1)), Chunk)


def test_models_are_loaded_and_unloaded(
    server: PolicyServer, policy: Policy, seeing: Path, socket_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert models(socket_path, "load", seeing) == 0
    offered = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in offered] == ["name", "tiny", "seeing"]
    assert offered[1].split() == ["tiny", "act", policy.digest.hex()[:12], "CPU", "0"]
    with Robot(server.address, hello_to(bundle.load(seeing).policy)) as robot:
        robot.welcomed()
        assert models(socket_path, "unload", "seeing") == 64
        assert "seeing is in use (sessions: 1); --force=true ends them" in capsys.readouterr().err
        assert models(socket_path, "unload", "seeing", "--force=true") == 0
        assert status_of(robot) == (grpc.StatusCode.NOT_FOUND, "model seeing was unloaded")
    assert refusal(server.address, hello_to(bundle.load(seeing).policy))[0] is grpc.StatusCode.NOT_FOUND
    with Robot(server.address, hello_to(policy)) as robot:
        assert isinstance(robot.welcomed().ask(look(1)), Chunk)


REFUSED = [
    (["load", "TINY"], "is named 'tiny', as is another bundle"),
    (["load", "/no/such"], "/no/such is neither a folder nor a shipped bundle"),
    (["replace", "SEEING"], "model: seeing is not offered; offered: [tiny]"),
    (["unload", "sewing"], "model: sewing is not offered; offered: [tiny]"),
    (["unload", "tiny"], "model: tiny is the last one"),
    (["load"], "expected list, load BUNDLE, replace BUNDLE or unload NAME"),
    (["list", "tiny"], "expected list, load BUNDLE"),
    (["remove", "tiny"], "no 'remove': expected one of list, load, unload, replace"),
    (["unlod", "tiny"], "no 'unlod': did you mean unload?"),
]


@pytest.mark.parametrize(("words", "said"), REFUSED, ids=[" ".join(words) for words, _ in REFUSED])
def test_what_cannot_be_is_refused_in_one_line(
    server: PolicyServer,
    tiny: Path,
    seeing: Path,
    socket_path: Path,
    words: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    paths = {"TINY": tiny, "SEEING": seeing}
    assert models(socket_path, *(paths.get(word, word) for word in words)) == 64
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("policy-server: ")
    assert said in line


def test_without_a_server_there_is_one_line(socket_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert models(socket_path, "list") == 69
    assert capsys.readouterr().err == f"policy-server: admin_socket: {socket_path}: no such file or directory\n"


def test_the_socket_is_its_owner_s_and_gone_afterwards(server: PolicyServer, tiny: Path, socket_path: Path) -> None:
    assert stat.S_IMODE(socket_path.stat().st_mode) == 0o600
    with pytest.raises(OutputError, match="address already in use"), Admin(socket_path, Models(lambda b: None)):  # type: ignore[arg-type, return-value]
        pass
    assert models(socket_path, "list") == 0


def test_a_connection_that_cannot_be_taken_is_not_the_end_of_the_door(
    server: PolicyServer, socket_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when there is no thread left for it."""
    start, refused = threading.Thread.start, threading.Event()

    def start_but_once(self: threading.Thread) -> None:
        if self.name == "admin" and not refused.is_set():
            refused.set()
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", start_but_once)
    with socket.socket(socket.AF_UNIX) as first:
        first.connect(str(socket_path))
        assert refused.wait(20)
    assert models(socket_path, "list") == 0


def test_a_stale_socket_is_taken_over_and_a_file_is_not(tmp_path: Path) -> None:
    none = Models(lambda bundle: None)  # type: ignore[arg-type, return-value]
    path = tmp_path / "stale"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    with Admin(path, none):
        assert path.is_socket()
    assert not path.exists()
    path.write_text("mine")
    with pytest.raises(OutputError, match="is there and is not a socket"), Admin(path, none):
        pass
    assert path.read_text() == "mine"
    with pytest.raises(OutputError, match="no such file or directory"), Admin(tmp_path / "no" / "folder", none):
        pass


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (b"\n", "no question"),
        (b"{]\n", "no question"),
        (b"[" * 60_000 + b"\n", "no question"),
        (b"[]\n", "is not a JSON object"),
        (b'{"do": "dance"}\n', "do: 'dance' is not one of"),
        (b'{"do": "load", "name": 5}\n', "load: name: 5 is not a name"),
        (b'{"do": "load"}\n', "load: name: '' is not a name"),
    ],
)
def test_nonsense_is_answered(server: PolicyServer, socket_path: Path, question: bytes, said: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(socket_path))
        connection.sendall(question)
        answer = json.loads(connection.makefile().readline())
    assert said in answer["error"]
    assert answer["exit_code"] == 76


def test_who_asks_may_leave_before_the_answer(
    server: PolicyServer, engines: Engines, biased: Path, socket_path: Path, policy: Policy, new: Policy
) -> None:
    engines.may_warm_up.clear()
    with Robot(server.address, hello_to(policy)) as robot:
        robot.welcomed()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(socket_path))
            connection.sendall(json.dumps({"do": "replace", "name": str(biased)}).encode() + b"\n")
        engines.may_warm_up.set()
        assert robot.receive() == Replaced(new)


def test_a_stop_does_not_wait_for_a_replacement_that_warms_up(
    tiny: Path, engines: Engines, biased: Path, socket_path: Path
) -> None:
    with serving(tiny, admin_socket=socket_path), socket.socket(socket.AF_UNIX) as connection:
        engines.loads.get(timeout=60)
        engines.may_warm_up.clear()
        connection.connect(str(socket_path))
        connection.sendall(json.dumps({"do": "replace", "name": str(biased)}).encode() + b"\n")
        engines.loads.get(timeout=60)
    engines.may_warm_up.set()


def test_an_engine_that_cannot_carry_its_robots_says_so_to_all(
    tiny: Path, engines: Engines, policy: Policy, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("policy_server.serving.load.WINDOW_S", 0.2)
    caplog.set_level("INFO")
    with serving(tiny, inject_latency_ms=50, max_batch=1) as server, ExitStack() as stack:
        one, two = (stack.enter_context(Robot(server.address, hello_to(policy))).welcomed() for _ in range(2))
        assert min(until_paced(robot, runs_dry_in_s=0.01) for robot in (one, two)) >= 0.05
        while until_paced(one, runs_dry_in_s=5.0):
            pass
    said = [record.getMessage() for record in caplog.records if record.name == "policy_server.serving.model"]
    assert said == [
        "tiny is overloaded: chunks are ready too late (sessions: 2)",
        "tiny keeps up again (sessions: 2)",
    ]


IDS = itertools.count(1)


def until_paced(robot: Robot, runs_dry_in_s: float) -> float:
    """Ask again and again, until the server says how often one is answered."""
    for id in IDS:
        message = robot.ask(look(id, timestep=id, runs_dry_in_s=runs_dry_in_s))
        if isinstance(message, Pace):
            robot.receive()  # the chunk
            return message.interval_s
    raise AssertionError
