"""LeRobot's clients on their own wire: recorded messages of LeRobot 0.6.1 against a real server, nothing unpickled."""

from __future__ import annotations

import io
import logging
import pickletools
import re
import struct
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from edge_runtime.errors import ConfigError, ProtocolError
from policy_server import bundle
from policy_server.config import LeRobotConfig, ServerConfig
from policy_server.server import PolicyServer
from policy_server.serving.lerobot import records, said
from policy_server.serving.lerobot.client import LOW, STALLED_S, QueueLevel
from policy_server.serving.lerobot.envelope import actions as envelope_of
from policy_server.serving.lerobot.records import Name, Record
from policy_server.serving.lerobot.reply import encode
from scripts.rig.bundles import write_bundle
from tests.policy_server.conftest import Engines, serving

RECORDED = Path(__file__).resolve().parents[2] / "recordings" / "lerobot"
JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
OBSERVATION, SETUP = ((RECORDED / f"{name}.pkl").read_bytes() for name in ("observation", "setup"))
MODULE = said.HELPERS[0]
DEADLINE_S = 20.0


def message(data: bytes, state: int = 0) -> bytes:
    """A PolicySetup around `data`; with a `state`, an Observation."""
    if not state:
        return envelope_of(data)
    return b"\x08" + bytes([state]) + b"\x12" + envelope_of(data)[1:]


class Client:
    """What LeRobot's RobotClient calls, in bytes."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def unary(self, method: str, data: bytes = b"") -> bytes:
        return bytes(self._channel.unary_unary(f"/transport.AsyncInference/{method}")(data, timeout=DEADLINE_S))

    def send(self, *pieces: bytes) -> None:
        self._channel.stream_unary("/transport.AsyncInference/SendObservations")(iter(pieces), timeout=DEADLINE_S)

    def actions(self) -> bytes:
        """The chunk, once there is one."""
        for _ in range(10):
            if reply := self.unary("GetActions"):
                at = 1
                while reply[at] > 0x7F:
                    at += 1
                return reply[at + 1 :]
        raise AssertionError("no chunk")


def timesteps(reply: bytes) -> list[int]:
    """Of the TimedActions in a reply."""
    ops = list(pickletools.genops(reply))
    return [
        int(ops[at + 1][1])  # type: ignore[arg-type]
        for at, (op, argument, _) in enumerate(ops)
        if op.name == "BINGET" and argument == 4
    ]


def timestep_of(data: bytes, timestep: int, *, must_go: bool) -> bytes:
    """The recorded observation, at another timestep."""
    data = data.replace(b"timestep\x94K\x07", b"timestep\x94K" + bytes([timestep]))
    return data if must_go else data.replace(b"must_go\x94\x88", b"must_go\x94\x89")


@pytest.fixture(scope="session")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that fits what was recorded: six joints, one camera of 16 x 12."""
    folder = tmp_path_factory.mktemp("bundles") / "act_so101"
    return six_joints(folder)


def six_joints(folder: Path) -> Path:
    return write_bundle(
        folder,
        name=folder.name,
        cameras=[("front", 12, 16)],
        chunk=50,
        names=[f"{joint}.pos" for joint in JOINTS],
    )


@pytest.fixture
def server(arm: Path, engines: Engines, caplog: pytest.LogCaptureFixture) -> Iterator[PolicyServer]:
    caplog.set_level(logging.INFO)
    with serving(arm, lerobot_listen="127.0.0.1:0", metrics_port=0) as server:
        yield server


@pytest.fixture
def client(server: PolicyServer) -> Iterator[Client]:
    with Client(server.lerobot_address) as client:
        yield client


@pytest.mark.parametrize("name", ["observation", "observation_p5", "observation_scalar"])
def test_what_lerobot_pickles_is_read_without_unpickling(name: str) -> None:
    seen = said.observation((RECORDED / f"{name}.pkl").read_bytes())
    picture = np.random.default_rng(5).integers(0, 256, (12, 16, 3), np.uint8)
    assert seen.task == "put the cube into the box"
    assert seen.timestamp == 1700000000.25
    assert seen.timestep == (8 if name == "observation_scalar" else 7)
    assert seen.must_go == (name != "observation_scalar")
    assert list(seen.numbers.values()) == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]
    np.testing.assert_array_equal(seen.pictures["front"], picture)


def test_a_setup_is_read() -> None:
    told = said.setup(SETUP)
    assert told.joints == tuple(f"{joint}.pos" for joint in JOINTS)
    assert told.cameras == {"front": (12, 16)}
    assert (told.policy_type, told.rows, told.rename) == ("act", 50, {})
    assert "act_so101" in told.path


def call(module: bytes, name: bytes, arguments: bytes) -> bytes:
    return b"\x8c" + bytes([len(module)]) + module + b"\x8c" + bytes([len(name)]) + name + b"\x93" + arguments + b"R"


EXPLOITS = {
    "protocol 0": b"cos\nsystem\n(S'touch owned'\ntR.",
    "protocol 1": b"(S'touch owned'\nios\nsystem\n.",
    "protocol 2": b"\x80\x02cposix\nsystem\nX\x0b\x00\x00\x00touch owned\x85R.",
    "protocol 3": b"\x80\x03cbuiltins\neval\nX\x01\x00\x00\x001\x85R.",
    "protocol 4": b"\x80\x04" + call(b"posix", b"system", b"\x8c\x0btouch owned\x85") + b".",
    "protocol 5": b"\x80\x05" + call(b"builtins", b"eval", b"\x8c\x011\x85") + b".",
    "in a field": OBSERVATION.replace(b"\x8c\x19put the cube into the box", call(b"os", b"abort", b")")),
    "extension": b"\x80\x02\x82\x01.",
    "persistent": b"\x80\x04\x8c\x01aQ.",
    "too deep a stack": b"\x80\x04" + b"(" * 5000 + b".",
    "a length beyond the end": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b"a.",
}


@pytest.mark.parametrize("name", EXPLOITS)
def test_an_exploit_is_data_and_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ProtocolError):
        said.observation(EXPLOITS[name])
    assert not list(tmp_path.iterdir())


def test_a_call_becomes_a_record() -> None:
    value = records.read(EXPLOITS["protocol 4"])
    assert isinstance(value, Record)
    assert (value.callee, value.arguments) == (Name("posix", "system"), ("touch owned",))


def test_a_shape_that_does_not_fit_its_bytes_is_refused() -> None:
    with pytest.raises(ProtocolError, match="front: its shape does not fit its bytes"):
        said.observation(OBSERVATION.replace(b"K\x0cK\x10K\x03\x87", b"K\x0cK\x11K\x03\x87"))


def test_a_reply_shares_one_tensor_and_is_small() -> None:
    chunk = np.arange(300, dtype=np.float32).reshape(50, 6)
    reply = encode(chunk, 300, 12.5, 1 / 30, MODULE)
    assert len(reply) <= 3500
    assert timesteps(reply) == list(range(300, 350))
    globals_ = [op.name for op, _, _ in pickletools.genops(reply)].count("STACK_GLOBAL")
    assert globals_ == 4  # torch.from_numpy, numpy.ndarray, TimedAction, operator.getitem
    pickletools.dis(reply, out=io.StringIO())  # raises for a stack or a memo that does not fit


def test_a_client_of_lerobot_gets_its_chunk(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    client.unary("Ready")
    client.unary("SendPolicyInstructions", message(SETUP))
    third = len(OBSERVATION) // 3
    pieces = (OBSERVATION[:third], OBSERVATION[third : 2 * third], OBSERVATION[2 * third :])
    client.send(*(message(piece, state) for state, piece in enumerate(pieces, start=1)))
    reply = client.actions()
    assert timesteps(reply) == list(range(7, 57))
    first = next(argument for op, argument, _ in pickletools.genops(reply) if op.name == "BYTEARRAY8")
    assert isinstance(first, bytearray)
    picture = np.random.default_rng(5).integers(0, 256, (12, 16, 3), np.uint8)
    expected = picture.mean() + np.arange(6) + 0.5  # the bundle adds the mean of the picture to the joints
    np.testing.assert_allclose(np.frombuffer(first, "<f4")[:6], expected, rtol=1e-5)
    assert "runs act_so101" in caplog.text


def test_a_client_without_setup_is_served(client: Client) -> None:
    """Its server was killed and started again: LeRobot's own never moves it again."""
    client.send(message(OBSERVATION, 3))
    assert timesteps(client.actions())[0] == 7


def test_a_lost_must_go_does_not_stall_a_still_arm(client: Client) -> None:
    client.send(message(OBSERVATION, 3))
    assert timesteps(client.actions())[0] == 7
    client.send(message(timestep_of(OBSERVATION, 50, must_go=False), 3))  # the same state, 7 actions left
    assert timesteps(client.actions())[0] == 50


def test_the_queue_level_decides_what_must_go() -> None:
    level = QueueLevel(rows=50)
    assert level.must_go(0, 10.0)
    level.sent(0, 50, 10.1)
    assert not level.must_go(50 - int(LOW * 50) - 1, 10.2)
    assert level.must_go(50 - int(LOW * 50), 10.2)
    level.sent(25, 50, 10.3)
    assert not level.must_go(26, 10.4)
    assert level.must_go(26, 10.4 + STALLED_S)  # it does not move on: the chunk never arrived
    level.sent(26, 50, 11.0)
    level.forget()
    assert level.must_go(27, 11.1)


def test_two_clients_have_a_session_each(server: PolicyServer) -> None:
    with Client(server.lerobot_address) as one, Client(server.lerobot_address) as other:
        for client, rows in ((one, b"K\x02"), (other, b"K\x05")):
            client.unary("Ready")
            told = SETUP.replace(b"actions_per_chunk\x94K\x32", b"actions_per_chunk\x94" + rows)
            client.unary("SendPolicyInstructions", message(told))
        one.send(message(OBSERVATION, 3))
        other.send(message(timestep_of(OBSERVATION, 40, must_go=True), 3))
        assert timesteps(one.actions()) == [7, 8]
        assert timesteps(other.actions()) == list(range(40, 45))


def refused(call: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value


def test_a_robot_that_does_not_fit_is_told_by_name(client: Client) -> None:
    other = SETUP.replace(b"K\x0cK\x10K\x03\x87", b"K\x18K\x20K\x03\x87").replace(b"elbow_flex.pos", b"elbow_flux.pos")
    error = refused(lambda: client.unary("SendPolicyInstructions", message(other)))
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "elbow_flux.pos" in error.details()
    assert "camera front: the client sends 32x24, the policy takes 16x12" in error.details()


def test_a_failed_inference_is_internal_with_an_id(client: Client, engines: Engines) -> None:
    def spoil(batch: object) -> None:
        raise RuntimeError("on fire")

    engines["act_so101"].spoil = spoil
    client.send(message(OBSERVATION, 3))
    error = refused(client.actions)
    assert error.code() is grpc.StatusCode.INTERNAL
    assert "on fire" in error.details()
    assert "(id " in error.details()


@pytest.mark.parametrize(
    ("pieces", "reason"),
    [
        ([message(b"nunk", 3)], "pickle: opcode 0x6e"),
        ([message(b"junk", 1)], "observation: has no end"),
        ([message(b"junk", 7)], "transfer_state: 7 is not 1, 2 or 3"),
        ([b"\xff\xff"], "message: "),
    ],
)
def test_damaged_observations_are_refused(client: Client, pieces: list[bytes], reason: str) -> None:
    error = refused(lambda: client.send(*pieces))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details().startswith(reason)


@pytest.mark.parametrize("strict", [False, True])
def test_another_policy_is_a_warning_or_refused(
    strict: bool, tmp_path: Path, engines: Engines, caplog: pytest.LogCaptureFixture
) -> None:
    other = six_joints(tmp_path / "stacking")
    with (
        serving(other, lerobot_listen="127.0.0.1:0", lerobot=LeRobotConfig(strict=strict)) as server,
        Client(server.lerobot_address) as client,
    ):
        if strict:
            error = refused(lambda: client.unary("SendPolicyInstructions", message(SETUP)))
            assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert "[stacking] is served" in error.details()
        else:
            client.unary("SendPolicyInstructions", message(SETUP))
            assert "and gets stacking" in caplog.text


def test_without_the_flag_the_client_and_the_log_are_told(
    arm: Path, engines: Engines, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(arm) as server, Client(server.address) as client:
        error = refused(lambda: client.unary("Ready"))
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "--lerobot_listen=127.0.0.1:8081" in error.details()
    assert caplog.text.count("the caller is LeRobot's client") == 1


def test_beyond_loopback_only_with_insecure(arm: Path) -> None:
    with pytest.raises(ConfigError, match=r"lerobot_listen: .*neither TLS nor a token; --insecure=true"):
        PolicyServer(ServerConfig(lerobot_listen="0.0.0.0:0"), [bundle.load(arm)])


def test_metrics_tell_its_wire(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    said_before = "\n".join(record.getMessage() for record in caplog.get_records("setup"))
    client.send(message(OBSERVATION, 3))
    client.actions()
    (page,) = re.findall(r"metrics on (http://127\.0\.0\.1:\d+/metrics)", said_before)
    text = urllib.request.urlopen(page, timeout=5).read().decode()
    assert re.search(r'^policy_server_sessions\{model="act_so101",wire="lerobot"\} 1\.0$', text, re.M)
    labels = 'answer="chunk",model="act_so101",wire="lerobot"'
    assert re.search(rf"^policy_server_answers_total\{{{labels}\}} 1\.0$", text, re.M)
