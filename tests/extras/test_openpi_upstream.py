"""`openpi://HOST:PORT`: a stand-in for openpi's server, honest or not, behind our policy server."""

from __future__ import annotations

import hashlib
import re
import socket
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openpi_client", reason="make test-extras installs it")
from openpi_client import msgpack_numpy

from edge_runtime.errors import ConfigError, ModelError, UsageError
from edge_runtime.wire.messages import Chunk, Failure, Frame, Observation
from policy_server import cli
from policy_server.config import ServerConfig
from policy_server.engines.openpi import engine as engine_module
from policy_server.engines.openpi.config import OpenpiConfig
from policy_server.engines.openpi.engine import OpenpiPolicy
from policy_server.engines.providers import Runtime
from policy_server.engines.sources import find
from scripts.rig.openpi_server import Standing, standing_in
from scripts.rig.program import Arm, Edge, Server
from scripts.rig.robots import Robot, hello_to, look
from tests.policy_server.conftest import serving

PAGE = Path(__file__).resolve().parents[2] / "docs" / "openpi.md"
MAPS = dict(re.findall(r"```yaml\n# (\w+)\.yaml\n(.*?)```", PAGE.read_text(), re.DOTALL))
TINY = """
observation: {state: observation.state}
joints: {shoulder.pos: degrees, elbow.pos: degrees, gripper.pos: degrees}
chunk_size: 4
fps: 30
"""
KEY = "a-key-of-more-than-16"


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    (tmp_path / "map.yaml").write_text(TINY)
    return tmp_path / "map.yaml"


def repeat(observation: dict[str, Any]) -> dict[str, Any]:
    return {"actions": np.repeat(observation["state"][None], 4, axis=0).astype(np.float64)}


class Script:
    """What the stand-in does with its next observations; `repeat` when nothing is left to do."""

    def __init__(self) -> None:
        self.next: list[Callable[[dict[str, Any]], Any]] = []

    def __call__(self, observation: dict[str, Any]) -> Any:
        return (self.next.pop(0) if self.next else repeat)(observation)


@contextmanager
def behind(script: Any, file: Path, **settings: Any) -> Iterator[tuple[Standing, Robot]]:
    """The stand-in, and a robot at our server in front of it."""
    config = OpenpiConfig(**{"answer_s": 20.0} | settings)
    with standing_in(script) as standing, ExitStack() as stack:
        source = OpenpiPolicy(f"openpi://127.0.0.1:{standing.port}", file, config)
        server = stack.enter_context(serving(source))
        robot = stack.enter_context(Robot(server.address, hello_to(source.policy)))
        yield standing, robot.welcomed()


@pytest.mark.parametrize("name", MAPS)
def test_the_pages_maps_ask_as_the_policies_are_asked(name: str, tmp_path: Path) -> None:
    """Keys, layout and types of each message, and the chunk that comes back."""
    (tmp_path / "map.yaml").write_text(MAPS[name])
    asked: list[Any] = []

    def infer(observation: dict[str, Any]) -> dict[str, Any]:
        asked.append(observation)
        rows = np.arange(policy.chunk_size, dtype=np.float64)[:, None]
        return {"actions": np.repeat(rows, len(policy.joints), axis=1)}

    with standing_in(infer) as standing:
        source = OpenpiPolicy(f"openpi://127.0.0.1:{standing.port}", tmp_path / "map.yaml", OpenpiConfig())
        policy = source.policy
        with serving(source) as server, Robot(server.address, hello_to(policy)) as robot:
            robot.welcomed()
            pictures = {camera.name: np.full((224, 224, 3), 7, np.uint8) for camera in policy.cameras}
            for picture in pictures.values():
                picture[0, 1, 2] = 200
            observation = Observation(
                id=1,
                session=1,
                timestep=0,
                must_go=True,
                state=np.arange(len(policy.joints), dtype=np.float32),
                frames=tuple(Frame.raw(camera, picture) for camera, picture in pictures.items()),
                extra_state={each.name: np.arange(each.dimension, dtype=np.float32) for each in policy.extra_state},
                task="fold the towel",
            )
            chunk = robot.ask(observation)
    assert isinstance(chunk, Chunk)
    np.testing.assert_array_equal(chunk.actions[:, -1], np.arange(policy.chunk_size))
    seen = asked[-1]
    assert seen["prompt"] == "fold the towel"
    first = (0, 1, 2)
    if name == "aloha":
        assert set(seen) == {"state", "images", "prompt"}
        assert set(seen["images"]) == {"cam_high", "cam_left_wrist", "cam_right_wrist"}
        assert seen["state"].shape == (14,)
        assert seen["images"]["cam_high"].shape == (3, 224, 224)
        assert seen["images"]["cam_high"][2, 0, 1] == 200
        return
    picture = {
        "droid": "observation/exterior_image_1_left",
        "libero": "observation/image",
        "openvla": "image",
    }[name]
    assert seen[picture].dtype == np.uint8
    assert seen[picture].shape == (224, 224, 3)
    assert seen[picture][first] == 200
    if name == "droid":
        np.testing.assert_array_equal(seen["observation/joint_position"], np.arange(7))
        np.testing.assert_array_equal(seen["observation/gripper_position"], [7])
    if name == "libero":
        np.testing.assert_array_equal(seen["observation/state"], np.arange(8))


def raises(error: Exception) -> Callable[[dict[str, Any]], Any]:
    def infer(observation: dict[str, Any]) -> Any:
        raise error

    return infer


WRONG: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "raises": (raises(RuntimeError("no such drawer")), "RuntimeError: no such drawer"),
    "raises without words": (raises(KeyError()), "KeyError"),
    "another shape": (lambda o: {"actions": o["state"]}, "actions: float32 (3,) is not (4, 3), the map's chunk_size"),
    "more joints": (lambda o: {"actions": np.zeros((4, 32))}, "actions: float64 (4, 32) is not (4, 3), the map's"),
    "no array": (lambda o: {"actions": [[1.0, 2.0, 3.0]] * 4}, "actions: list is not (4, 3), the map's chunk_size"),
    "text in the array": (lambda o: {"actions": np.full((4, 3), "x")}, "msgpack: an array's dtype is not one of ["),
    "no actions": (lambda o: {"action": o["state"]}, "the answer has no 'actions'; it has [server_timing, action]"),
    "not a number": (lambda o: {"actions": np.full((4, 3), np.nan)}, "row 0 of the chunk, shoulder.pos: nan is not a"),
    "infinite": (lambda o: {"actions": np.full((4, 3), -np.inf)}, "row 0 of the chunk, shoulder.pos: -inf is not a"),
    "too large": (lambda o: {"actions": np.full((4, 3), 1e300)}, "row 0 of the chunk, shoulder.pos: inf is not a"),
}


@pytest.mark.parametrize(("fault", "said"), WRONG.values(), ids=WRONG)
def test_what_an_upstream_does_wrong_is_a_failure_with_its_name_and_the_server_lives_on(
    tiny: Path, caplog: pytest.LogCaptureFixture, fault: Any, said: str
) -> None:
    script = Script()
    with behind(script, tiny) as (standing, robot):
        script.next = [fault]
        failure = robot.ask(look(1, timestep=1, state=7.0))
        assert isinstance(failure, Failure)
        name = f"openpi://127.0.0.1:{standing.port}" if "of the chunk" not in said else "openpi"
        assert failure.message.startswith(f"{name}: {said}")
        assert "\n" not in failure.message
        assert sum(failure.message in record.getMessage() for record in caplog.records) == 1
        chunk = robot.ask(look(2, timestep=2, state=9.0))
        assert isinstance(chunk, Chunk)
        np.testing.assert_array_equal(chunk.actions, np.full((4, 3), 9.0))


def test_an_upstream_that_answers_nothing_is_given_up_and_its_late_answer_is_nobodys(tiny: Path) -> None:
    script, may_answer = Script(), threading.Event()

    def hold(observation: dict[str, Any]) -> Any:
        may_answer.wait(20)
        return repeat(observation)

    with behind(script, tiny, answer_s=0.3) as (standing, robot):
        script.next = [hold]
        failure = robot.ask(look(1, timestep=1, state=1.0))
        assert isinstance(failure, Failure)
        assert failure.message == f"openpi://127.0.0.1:{standing.port}: no answer within 0.3 s"
        may_answer.set()
        timestep = 2  # on a busy machine 0.3 s may not do
        while isinstance(chunk := robot.ask(look(timestep, timestep=timestep, state=9.0)), Failure):
            timestep += 1
        np.testing.assert_array_equal(chunk.actions, np.full((4, 3), 9.0))


def test_a_connection_that_was_ended_costs_no_observation(tiny: Path) -> None:
    with behind(repeat, tiny) as (standing, robot):
        for number in range(1, 4):
            assert isinstance(robot.ask(look(number, timestep=number, state=1.0)), Chunk)
            standing.drop()
        assert len(standing.keys) == 3 + (len(standing.keys) > 3)  # the last drop may be answered already


def test_an_upstream_that_goes_and_comes_back(tiny: Path) -> None:
    with behind(repeat, tiny) as (standing, robot):
        assert isinstance(robot.ask(look(1, timestep=1)), Chunk)
        standing.server.shutdown()
        failure = robot.ask(look(2, timestep=2))
        assert isinstance(failure, Failure)
        assert failure.message.startswith(f"openpi://127.0.0.1:{standing.port}: cannot be reached: ")
        with standing_in(repeat, standing.port):
            assert isinstance(robot.ask(look(3, timestep=3)), Chunk)


def test_the_key_is_shown_and_never_to_another_machine_without_tls(tiny: Path) -> None:
    key = tiny.parent / "key"
    key.touch(0o600)
    key.write_text(KEY)
    with behind(repeat, tiny, api_key_file=key) as (standing, robot):
        assert isinstance(robot.ask(look(1)), Chunk)
        assert standing.keys == [f"Api-Key {KEY}"]
    config = OpenpiConfig(api_key_file=key)
    with pytest.raises(ConfigError, match=r"openpi.api_key_file: .* has no TLS.*openpis://10.0.0.1:8000 has"):
        OpenpiPolicy("openpi://10.0.0.1:8000", tiny, config)
    OpenpiPolicy("openpis://10.0.0.1:8000", tiny, config)
    OpenpiPolicy("openpi://10.0.0.1:8000", tiny, config, insecure=True)


# An upstream that is not one of websockets' servers: it says what it likes.


def frame(data: bytes, opcode: int = 2, claimed: int | None = None) -> bytes:
    size = len(data) if claimed is None else claimed
    head = bytes([size]) if size < 126 else b"\x7e" + size.to_bytes(2) if size < 1 << 16 else b"\x7f" + size.to_bytes(8)
    return bytes([0x80 | opcode]) + head + data


GREETING = frame(msgpack_numpy.packb({}))
ANSWER = frame(msgpack_numpy.packb({"actions": np.zeros((4, 3))}))


@contextmanager
def saying(*words: bytes, reads: bool = True, end: bool = True) -> Iterator[int]:
    """A port; each connection is upgraded and told `words`, then closed, or held open without being read."""
    over = threading.Event()

    def handle(connection: socket.socket) -> None:
        with connection:
            request = b""
            while b"\r\n\r\n" not in request:
                request += connection.recv(1 << 16)
            key = re.search(rb"Sec-WebSocket-Key: (\S+)", request)
            assert key
            accept = b64encode(hashlib.sha1(key[1] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
            connection.sendall(
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n" + b"".join(words)
            )
            if reads:
                while end and connection.recv(1 << 16):
                    pass
            over.wait(20)

    def accept() -> None:
        while True:
            try:
                connection = listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=quietly, args=(connection,), daemon=True).start()

    def quietly(connection: socket.socket) -> None:
        with suppress(OSError):
            handle(connection)

    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            over.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


LIES: dict[str, tuple[list[bytes], str]] = {
    "greets in text": ([frame(b"who are you", 1)], "is no openpi server: it begins with 'who are you'"),
    "greets with a number": ([frame(b"\x07")], "is no openpi server: it begins with '7'"),
    "greets with noise": ([frame(b"\xc1\xc1")], "is no openpi server: msgpack: cannot be read"),
    "greets with lists without end": ([frame(b"\x91" * 9999)], "is no openpi server: msgpack: cannot be read"),
    "greets with a claim": ([frame(b"", claimed=1 << 40)], "cannot be reached: "),
    "breaks the protocol": ([b"\xff\xff\xff"], "cannot be reached: "),
    "says nothing": ([], "cannot be reached: timed out"),
    "answers before it is asked": ([GREETING, ANSWER, ANSWER], "spoke without being asked"),
    "complains before it is asked": ([GREETING, frame(b"out of\nmemory\n", 1)], "spoke without being asked: memory"),
    "never answers": ([GREETING], "no answer within 2 s"),
    "answers a claim": ([GREETING, frame(b"abc", claimed=1 << 20)], "no answer within 2 s"),
}


@pytest.mark.parametrize(("words", "said"), LIES.values(), ids=LIES)
def test_an_upstream_that_lies_is_refused_at_the_start(
    tiny: Path, words: list[bytes], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "WARM_UP_S", 2.0 if said.startswith("no answer") else 30.0)
    monkeypatch.setattr(engine_module, "CONNECT_S", 0.5 if said.endswith("timed out") else 30.0)
    with saying(*words) as port:
        engine = OpenpiPolicy(f"openpi://127.0.0.1:{port}", tiny, OpenpiConfig(answer_s=0.5)).open(Runtime("cpu"))
        if said.startswith("spoke"):
            engine._upstream._connected(20)
            while not engine._upstream._connection.recv_messages.frames.qsize():
                pass  # what it says has to be here first
        with pytest.raises(ModelError, match=re.escape(f"openpi://127.0.0.1:{port}: {said}")) as caught:
            engine.warm_up([1], lambda progress: None)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400


def test_an_upstream_that_does_not_read_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its TCP window is full: sending has a limit too."""
    large = "cameras: {front: [2000, 2000]}\nobservation: {state: observation.state, image: observation.images.front}\n"
    (tmp_path / "map.yaml").write_text(TINY.replace("observation: {state: observation.state}\n", large))
    monkeypatch.setattr(engine_module, "WARM_UP_S", 0.5)
    with saying(GREETING, reads=False) as port:
        source = OpenpiPolicy(f"openpi://127.0.0.1:{port}", tmp_path / "map.yaml", OpenpiConfig(answer_s=0.5))
        with pytest.raises(ModelError, match=f"openpi://127.0.0.1:{port}: (no answer within|the connection ended)"):
            source.open(Runtime("cpu")).warm_up([1], lambda progress: None)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fps: 30": ""}, "fps: is missing; a policy behind an openpi server is described by its map"),
        ({"joints: {": "joints: {}\nnames: {"}, "names: is not known"),
        ({"observation: {state: observation.state}": ""}, "observation: is missing"),
        (
            {"state: observation.state": "state: observation.stat"},
            "observation.state: 'observation.stat' is not known; did you mean obs",
        ),
        (
            {"state: observation.state": "state: [shoulder.pos, elbow.po]"},
            "observation.state: 'elbow.po' is not known; did you mean elbow.pos",
        ),
        ({"state: observation.state": "state: 7"}, "observation.state: 7 is neither an input's name nor a list of jo"),
        ({"state: observation.state": "a: observation.state, b: task2"}, "observation.b: 'task2' is not known"),
        ({"chunk_size: 4": "chunk_size: 4\ncameras: {front: [2, 2]}"}, "openpi finds [observation.images.front]"),
        ({"chunk_size: 4": "chunk_size: 0"}, "chunk_size: 0 is not in 1..4096"),
        ({"observation:": "observation: [\n"}, "line "),
    ],
)
def test_a_map_that_cannot_be_is_one_line_that_names_it(tiny: Path, change: dict[str, str], said: str) -> None:
    text = TINY
    for old, new in change.items():
        text = text.replace(old, new)
    tiny.write_text(text)
    with pytest.raises(ConfigError) as caught:
        OpenpiPolicy("openpi://127.0.0.1:8000", tiny, OpenpiConfig())
    assert str(caught.value).removeprefix("map: ").startswith(f"{tiny}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_started(tiny: Path) -> None:
    with pytest.raises(UsageError, match=r"map: is missing, and openpi://127.0.0.1:8000 needs it"):
        cli._sources(ServerConfig(bundles=["openpi://127.0.0.1:8000"]), [])
    for name in ("openpi://", "openpi://host", "openpi://unix:/tmp/here", "openpi://host:99999"):
        with pytest.raises(ConfigError, match=r"bundles: "):
            OpenpiPolicy(name, tiny, OpenpiConfig())
    with pytest.raises(
        UsageError, match="is another server's policy, which can be named when this one is started only"
    ):
        find("openpi://127.0.0.1:8000", [])
    (source,) = cli._sources(ServerConfig(bundles=["openpi://127.0.0.1:8000"], map=tiny), [])
    assert source.policy == replace(source.policy, name="openpi", type="openpi")
    with pytest.raises(ConfigError, match=r"map: cannot read .*none.yaml: No such file"):
        OpenpiPolicy("openpi://127.0.0.1:8000", tiny.parent / "none.yaml", OpenpiConfig())


def test_the_arm_moves_holds_while_the_upstream_is_blocked_and_moves_on(tmp_path: Path) -> None:
    """The whole way: a virtual arm, our edge, our server, and a policy behind openpi's protocol."""
    joints = ["shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper"]
    units = {f"{joint}.pos": "percent" if joint == "gripper" else "degrees" for joint in joints}
    (tmp_path / "map.yaml").write_text(
        f"observation: {{state: observation.state}}\njoints: {units}\nchunk_size: 50\nfps: 30\n"
    )
    asked = iter(range(1_000_000))
    open_, blocked = threading.Event(), threading.Event()
    open_.set()

    def sway(observation: dict[str, Any]) -> dict[str, Any]:
        if not open_.is_set():
            blocked.set()
            open_.wait(60)
        actions = np.zeros((50, 6))
        actions[:, 0] = 10 * np.sin(next(asked) + np.arange(50) / 8)
        return {"actions": actions}

    with ExitStack() as stack:
        standing = stack.enter_context(standing_in(sway))
        stack.callback(open_.set)
        arm = stack.enter_context(Arm(tmp_path, "--cameras=[]"))
        address, limit = f"openpi://127.0.0.1:{standing.port}", "--openpi.answer_s=0.5"
        server = stack.enter_context(Server(tmp_path, address, f"--map={tmp_path}/map.yaml", limit))
        edge = stack.enter_context(Edge(tmp_path, *arm.robot, f"--server_address={server.address}"))
        edge.wait_for("-> running")
        goals = moved(arm, edge, set(), 20)
        open_.clear()
        assert blocked.wait(60)
        edge.wait_for("no answer within 0.5 s")
        assert arm.torque() == {1}
        assert edge.process.poll() is None
        open_.set()
        moved(arm, edge, goals, 20)
        assert edge.end() == 0, edge.text


def moved(arm: Arm, edge: Edge, before: set[int | None], more: int) -> set[int | None]:
    """Every goal of the first servo so far, once so many new ones were written."""
    while len((goals := {write.get("1") for write in arm.written("Goal_Position")}) - before) < more:
        assert edge.process.poll() is None, edge.text
    return goals
