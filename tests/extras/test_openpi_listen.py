"""`--openpi_listen`: the stock openpi client drives our policies, and what is no client of openpi's is refused."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

openpi_client = pytest.importorskip("openpi_client", reason="make test-extras installs it")
import msgpack  # noqa: E402
import websockets.sync.client  # noqa: E402
from openpi_client import msgpack_numpy  # noqa: E402
from openpi_client.websocket_client_policy import WebsocketClientPolicy  # noqa: E402
from websockets.exceptions import ConnectionClosed, InvalidStatus  # noqa: E402

from edge_runtime.errors import ConfigError, OutputError  # noqa: E402
from policy_server import bundle  # noqa: E402
from policy_server.config import LimitsConfig, ServerConfig  # noqa: E402
from policy_server.server import PolicyServer  # noqa: E402
from scripts.rig.bundles import write_bundle  # noqa: E402
from scripts.rig.fuzzing.fuzzer import Fuzzer  # noqa: E402
from scripts.rig.fuzzing.targets import TARGETS  # noqa: E402
from tests.policy_server.conftest import Engines, serving  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:connect\\(\\) must be used:DeprecationWarning")  # openpi's client
TOKEN = "a-token-of-more-than-16"
LOOK = {"observation.state": np.array([1.0, 2.0, 3.0])}
LIBERO = """
observation:
  observation/image: observation.images.front
  observation/wrist_image: observation.images.wrist
  observation/state: observation.state
  observation/extra: observation.environment_state
"""
ALOHA = """
observation:
  state: observation.state
  images: {cam_high: observation.images.front, cam_wrist: observation.images.wrist}
  more: observation.environment_state
pictures: chw
"""


def client_of(server: PolicyServer, path: str = "", key: str | None = None) -> WebsocketClientPolicy:
    return WebsocketClientPolicy(f"ws://{server.openpi_address}{path}", api_key=key)


def connect(server: PolicyServer, path: str = "/", **more: Any) -> Any:
    """To be entered."""
    address = f"ws://{server.openpi_address}{path}"
    return websockets.sync.client.connect(address, compression=None, close_timeout=1, **more)


def test_the_stock_client_gets_chunks_and_the_metadata(tiny: Path) -> None:
    with serving(tiny, openpi_listen="127.0.0.1:0", metrics_port=0) as server:
        client = client_of(server)
        assert client.get_server_metadata()["policy"] == "tiny"
        assert client.get_server_metadata()["chunk_size"] == 4
        for state in (np.array([1.0, 2.0, 3.0]), np.array([1, 2, 3], np.float32), [1.0, 2, 3]):
            answer = client.infer({"observation.state": state, "more": "is ignored"})
            expected = np.array([1, 2, 3]) + np.arange(4)[:, None] / 8
            np.testing.assert_allclose(answer["actions"], expected)
            assert answer["server_timing"]["infer_ms"] >= 0
        assert {str(each) for each in server._models.get("").wires} == {"openpi"}  # type: ignore[union-attr]
        client._ws.close()


@pytest.mark.parametrize("layout", [LIBERO, ALOHA])
def test_a_map_says_where_the_pictures_are(seeing: Path, tmp_path: Path, layout: str) -> None:
    (tmp_path / "map.yaml").write_text(layout)
    front, wrist = np.full((24, 32, 3), 10, np.uint8), np.full((16, 16, 3), 20, np.uint8)
    front[0, 0, 0] = 250  # an axis that was taken for another would move it
    state = np.array([1.0, 2.0, 3.0])
    look: dict[str, Any] = {
        "observation/image": front,
        "observation/wrist_image": wrist,
        "observation/state": state,
        "observation/extra": np.array([4.0, 6.0], np.float32),
    }
    if layout is ALOHA:
        images = {"cam_high": front.transpose(2, 0, 1), "cam_wrist": wrist.transpose(2, 0, 1)}
        look = {"state": state, "images": images, "more": [4, 6]}
    with serving(seeing, openpi_listen="127.0.0.1:0", map=tmp_path / "map.yaml") as server:
        client = client_of(server)
        actions = client.infer(look)["actions"]
        np.testing.assert_allclose(actions[0], state + front.mean() + 20 + 5 + 1, rtol=1e-5)
        client._ws.close()


def test_parts_of_the_state_and_the_task(tmp_path: Path) -> None:
    """DROID's keys: joints and gripper apart."""
    path = write_bundle(tmp_path / "tiny", uses_task=True)
    (tmp_path / "map.yaml").write_text(
        "observation:\n"
        "  observation/gripper_position: [gripper.pos]\n"
        "  observation/joint_position: [shoulder.pos, elbow.pos]\n"
        "  prompt: task\n"
    )
    with serving(path, openpi_listen="127.0.0.1:0", map=tmp_path / "map.yaml") as server:
        client = client_of(server)
        look = {"observation/joint_position": np.array([1.0, 2.0]), "prompt": "pick it up"}
        for gripper in (3.0, np.float32(3), np.array([3.0]), np.array(3)):
            actions = client.infer(look | {"observation/gripper_position": gripper})["actions"]
            np.testing.assert_array_equal(actions[0], [1, 2, 3])
        with pytest.raises(RuntimeError, match="prompt: int is not a text"):
            client.infer({**look, "observation/gripper_position": 3.0, "prompt": 7})
        client._ws.close()


@pytest.mark.parametrize(
    ("look", "said"),
    [
        ({}, r"observation: has no observation.state; it has \[\]"),
        ({"observation.state": np.zeros(4)}, r"observation.state: float64 \(4,\) is not 3 numbers"),
        ({"observation.state": np.array([0, np.nan, 0])}, "observation.state: has a number that is not finite"),
        ({"observation.state": np.array([0, 1e300, 0])}, "observation.state: has a number that is not finite"),
        ({"observation.state": "here"}, "observation.state: str is not 3 numbers"),
        ({"observation.state": [1, [2], 3]}, "observation.state: list is not 3 numbers"),
        ({"observation.state": np.zeros((3, 1))}, r"observation.state: float64 \(3, 1\) is not 3 numbers"),
    ],
)
def test_an_observation_that_does_not_fit_is_answered_in_text_and_the_next_is_served(
    tiny: Path, look: dict[str, Any], said: str
) -> None:
    with serving(tiny, openpi_listen="127.0.0.1:0") as server:
        client = client_of(server)
        with pytest.raises(RuntimeError, match=said):
            client.infer(look)
        assert client.infer(LOOK)["actions"].shape == (4, 3)
        client._ws.close()


def test_a_picture_of_another_kind_or_size_is_named(seeing: Path) -> None:
    whole = {
        "observation.state": np.zeros(3),
        "observation.environment_state": np.zeros(2),
        "observation.images.front": np.zeros((24, 32, 3), np.uint8),
        "observation.images.wrist": np.zeros((16, 16, 3), np.uint8),
    }
    wrong = [np.zeros((32, 24, 3), np.uint8), np.zeros((24, 32, 3), np.float32), np.zeros((3, 24, 32), np.uint8), 1]
    with serving(seeing, openpi_listen="127.0.0.1:0") as server:
        client = client_of(server)
        for picture in wrong:
            with pytest.raises(RuntimeError, match=r"observation.images.front: .* is not the policy's picture, uint8"):
                client.infer(whole | {"observation.images.front": picture})
        assert client.infer(whole)["actions"].shape == (4, 3)
        client._ws.close()


def array(**changes: Any) -> dict[bytes, Any]:
    sound = {b"__ndarray__": True, b"data": bytes(12), b"dtype": "<f4", b"shape": [3]}
    return sound | {name.encode(): value for name, value in changes.items()}


BYTES: dict[str, bytes | str] = {
    "text": "hello",
    "nothing": b"",
    "half a message": msgpack.packb(LOOK, default=msgpack_numpy.pack_array)[:-3],
    "more behind": msgpack.packb({}) + b"\x00",
    "a number": b"\x07",
    "a list": msgpack.packb([1, 2]),
    "an array of objects": msgpack.packb({"observation.state": array(dtype="|O")}),
    "an array of text": msgpack.packb({"observation.state": array(dtype="<U1")}),
    "a dtype that is a structure": msgpack.packb({"observation.state": array(dtype=[["a", "<f4"]])}),
    "another byte order": msgpack.packb({"observation.state": array(dtype=">f4")}),
    "a shape that does not fit": msgpack.packb({"observation.state": array(shape=[4])}),
    "a shape beyond all memory": msgpack.packb({"observation.state": array(shape=[1 << 30, 1 << 30, 3])}),
    "a shape below nothing": msgpack.packb({"observation.state": array(shape=[-3])}),
    "a shape of booleans": msgpack.packb({"observation.state": array(data=bytes(4), shape=[True])}),
    "no bytes": msgpack.packb({"observation.state": array(data="text")}),
    "an extension": msgpack.packb({"a": msgpack.ExtType(4, b"1234")}),
    "a key that is no text": b"\x81\x07\x07",
    "lists without an end": b"\x91" * 100_000,
    "lists that claim to be long": b"\xdd\x00\x01\x00\x00" * 1000,
    "a map that claims to be long": b"\xdf\xff\xff\xff\xff",
    "text that is not UTF-8": b"\x81\xa1\xff\x01",
    "a great many empty lists": msgpack.packb({"a": [[[]] * 1000] * 100}),
}


@pytest.mark.parametrize("data", BYTES.values(), ids=BYTES)
def test_bytes_that_are_no_observation_are_answered_in_text(tiny: Path, data: bytes | str) -> None:
    with serving(tiny, openpi_listen="127.0.0.1:0") as server, connect(server) as connection:
        connection.recv()
        connection.send(data)
        said = connection.recv()
        assert isinstance(said, str)
        assert said.startswith(("msgpack: ", "observation: "))
        assert len(said) < 1000
        connection.send(msgpack_numpy.packb(LOOK))
        assert isinstance(connection.recv(), bytes)


def test_a_message_that_is_too_large_ends_its_connection_and_no_other(tiny: Path) -> None:
    limits = LimitsConfig(observation_bytes=1 << 12)
    with serving(tiny, openpi_listen="127.0.0.1:0", limits=limits) as server:
        honest = client_of(server)
        with connect(server) as connection:
            connection.recv()
            connection.send(bytes(1 << 13))
            with pytest.raises(ConnectionClosed, match="1009"):
                connection.recv()
        assert honest.infer(LOOK)["actions"].shape == (4, 3)
        honest._ws.close()


def status(call: Callable[[], Any]) -> int:
    with pytest.raises(InvalidStatus) as caught:
        call()
    return int(caught.value.response.status_code)


def test_a_browser_is_refused(tiny: Path) -> None:
    with serving(tiny, openpi_listen="127.0.0.1:0") as server:
        assert status(lambda: connect(server, origin="http://example.org").__enter__()) == 403


def test_the_key_is_one_of_the_tokens(tiny: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.touch(0o600)
    tokens.write_text(TOKEN)
    with serving(tiny, wait=False, openpi_listen="127.0.0.1:0", token_file=tokens) as server:
        wait_until_healthy(server)
        for key in (None, "another-token-of-16", TOKEN[:-1]):
            assert status(lambda key=key: client_of(server, key=key)) == 401
        client = client_of(server, key=TOKEN)
        assert client.infer(LOOK)["actions"].shape == (4, 3)
        client._ws.close()


def wait_until_healthy(server: PolicyServer) -> None:
    server._models.get("").scheduler.warm.result(20)  # type: ignore[union-attr]
    with urllib.request.urlopen(f"http://{server.openpi_address}/healthz", timeout=20) as response:
        assert response.status == 200


def test_the_path_names_the_policy(tiny: Path, tmp_path: Path) -> None:
    other = write_bundle(tmp_path / "other", name="other", bias=5)
    with serving(tiny, other, openpi_listen="127.0.0.1:0") as server:
        for path, first in (("", 1), ("/", 1), ("/tiny", 1), ("/other", 6)):
            client = client_of(server, path)
            assert client.infer(LOOK)["actions"][0, 0] == first
            client._ws.close()
        assert status(lambda: connect(server, "/nobody").__enter__()) == 404


def test_health_is_told_by_http_from_the_warm_up_on(engines: Engines, tiny: Path) -> None:
    engines.may_warm_up.clear()
    with serving(tiny, wait=False, openpi_listen="127.0.0.1:0") as server:
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"http://{server.openpi_address}/healthz", timeout=20)
        assert status(lambda: connect(server).__enter__()) == 503
        engines.may_warm_up.set()
        wait_until_healthy(server)


def test_what_an_engine_raises_is_a_text_and_the_session_goes_on(engines: Engines, tiny: Path) -> None:
    with serving(tiny, openpi_listen="127.0.0.1:0") as server:
        client = client_of(server)

        def spoil(batch: Any) -> None:
            raise RuntimeError("no such drawer")

        engines["tiny"].spoil = spoil
        with pytest.raises(RuntimeError, match=r"the observation failed \(id \w+\): no such drawer"):
            client.infer(LOOK)
        engines["tiny"].spoil = lambda batch: None
        assert client.infer(LOOK)["actions"].shape == (4, 3)
        client._ws.close()


def test_a_client_that_is_silent_while_the_server_is_overloaded_keeps_its_session(tiny: Path) -> None:
    """What a robot of ours is told between its answers does not pile up for a client that reads none of it."""
    with serving(tiny, openpi_listen="127.0.0.1:0", limits=LimitsConfig(unread_answers=2)) as server:
        client = client_of(server)
        model = server._models.get("")
        assert model is not None
        (session,) = model._sessions
        for _ in range(10):
            session.tell_pace(overloaded=False)
        assert client.infer(LOOK)["actions"].shape == (4, 3)
        client._ws.close()


def test_places_are_given_back_and_beyond_them_a_client_is_told_to_try_again(tiny: Path) -> None:
    with serving(tiny, openpi_listen="127.0.0.1:0", max_sessions=1) as server:
        for _ in range(3):
            with connect(server) as first:
                first.recv()
                with pytest.raises(ConnectionClosed, match=r"1013.*all 1 sessions are taken"), connect(server) as late:
                    late.recv()
            model = server._models.get("")
            assert model is not None
            while model.sessions:
                pass


def test_connections_beyond_the_limit_are_closed_at_once(tiny: Path) -> None:
    limits = LimitsConfig(connections=2)
    with serving(tiny, openpi_listen="127.0.0.1:0", max_sessions=2, limits=limits) as server:
        host, port = server.openpi_address.split(":")
        silent = [socket.create_connection((host, int(port)), timeout=20) for _ in range(3)]
        assert silent[2].recv(1) == b""
        for each in silent:
            each.close()


def test_a_client_that_never_says_what_it_wants_and_one_that_falls_silent_are_ended(tiny: Path) -> None:
    with serving(tiny, wait=False, openpi_listen="127.0.0.1:0", limits=LimitsConfig(handshake_s=0.2)) as server:
        host, port = server.openpi_address.split(":")
        with socket.create_connection((host, int(port)), timeout=20) as silent:
            while silent.recv(1000):
                pass
    limits = LimitsConfig(idle_s=0.2)
    with serving(tiny, openpi_listen="127.0.0.1:0", limits=limits) as server, connect(server) as connection:
        connection.recv()
        with pytest.raises(ConnectionClosed, match=r"1008.*nothing heard for 0.2 s"):
            connection.recv()


def test_a_stop_ends_connections_that_wait_for_an_answer(engines: Engines, tiny: Path) -> None:
    with serving(tiny, openpi_listen="127.0.0.1:0") as server, ExitStack() as stack:
        connection = stack.enter_context(connect(server))
        connection.recv()
        engines["tiny"].gate.clear()
        connection.send(msgpack_numpy.packb(LOOK))
        assert engines["tiny"].sizes.get(timeout=20)
        server._openpi.stop()  # type: ignore[union-attr]
        assert connection.recv() == "the server is stopping"
        engines["tiny"].gate.set()


def test_where_it_may_listen(tiny: Path, tmp_path: Path) -> None:
    source = bundle.load(tiny)
    with pytest.raises(ConfigError, match=r"openpi_listen: .*has no TLS; --insecure=true"):
        PolicyServer(ServerConfig(openpi_listen="0.0.0.0:0"), [source])
    with pytest.raises(ConfigError, match="openpi_listen: must be HOST:PORT"):
        PolicyServer(ServerConfig(openpi_listen="unix:/tmp/here"), [source])
    (tmp_path / "map.yaml").write_text("observation: {state: [shoulder.pos]}")
    with pytest.raises(ConfigError, match=r"map: does not say where policy tiny finds \[elbow.pos, gripper.pos\]"):
        PolicyServer(ServerConfig(openpi_listen="127.0.0.1:0", map=tmp_path / "map.yaml"), [source])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OutputError, match=f"openpi_listen: {address}: "), serving(tiny, openpi_listen=address):
            pass


def test_the_fuzzers_corpus_holds_and_a_short_run_finds_nothing() -> None:
    fuzzer = Fuzzer(TARGETS["openpi"], seed=1)
    fuzzer.run(len(fuzzer.pool) + 500)
    assert sorted(fuzzer.target.folder.iterdir())
    assert not fuzzer.defects
