"""Values of the right type that cannot be, for every setting of every word; a new setting without a row fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from edge_runtime.program import extras, schema
from tests.bad_input.conftest import Answer
from tests.bad_input.programs import WORDS, Setting, context, settings
from tests.bad_input.test_files import FILES
from tests.bad_input.test_settings import nested

START, DOCTOR, PROFILE = "edge-runtime start", "edge-runtime doctor", "edge-runtime profile"
SETUP, SERVICE, TOP, DEMO = (f"edge-runtime {word}" for word in ("setup-motors", "service", "top", "demo"))
ARM, SERVER, CERTS = "edge-runtime virtual-arm", "policy-server start", "policy-server make-certs"
MODELS, EXPORT = "policy-server models", "export-onnx"
NOBODY = ("--robot.type=none", "--robot.joints.a.pos=degrees", "--give_up_after_s=0.1")
NOT_A_CALIBRATION_FILE = "is not the name of a calibration file (at most 128 bytes, without /), such as "
NOT_HOST_PORT = "is not HOST:PORT or unix:/path"
NOT_AN_ADDRESS = "is not an address such as http://127.0.0.1:8090/page"

Rows = dict[str, dict[str, tuple[str, str]]]  # word -> setting -> a value of it, and what is said after its name
VALUES: Rows = {
    START: {
        "robot.id": ("a/b", f": 'a/b' {NOT_A_CALIBRATION_FILE}my_arm"),
        "robot.port": ("", ": not given; serial adapters here: "),
        "robot.cameras.NAME.width": ("0", ": 0 is not in 1..8192"),
        "robot.cameras.NAME.height": ("9000", ": 9000 is not in 1..8192"),
        "robot.cameras.NAME.fps": ("-30", ": -30 is not in 1..1000"),
        "robot.cameras.NAME.index_or_path": ("-1", ": -1 is not the number of a /dev/video, a path or a URL"),
        "robot.cameras.NAME.fourcc": ("MJPEG", ": 'MJPEG' is not four characters, such as MJPG"),
        "robot.cameras.NAME.warmup_s": ("61", ": 61 is not in 0..60"),
        "robot.max_speed": ("-0.5", ": -0.5 is less than 0"),
        "robot.max_acceleration": ("-1", ": -1.0 is not an acceleration in joint units per s^2; 0 = off"),
        "robot.following_limit": ("0", ": 0 is not a distance in joint units, above 0"),
        "robot.following_s": ("-1", ": -1 is not in 0..1000000000"),
        "robot.max_relative_target": ("0", ": 0 is not a distance in joint units, above 0"),
        "robot.max_missed_replies": ("0", ": 0 is not in 1..10000"),
        "robot.position_p_coefficient": ("255", ": 255 is not in 0..254"),
        "robot.position_i_coefficient": ("-1", ": -1 is not in 0..254"),
        "robot.position_d_coefficient": ("300", ": 300 is not in 0..254"),
        "robot.park_timeout_s": ("0", ": 0 is not in 0.1..60"),
        "robot.max_temperature": ("20", ": 20 is not in 30..100 °C, nor 0 for off"),
        "robot.bus_timeout_ms": (
            "101",
            ": 101 is not in 0.1..100: a tick may wait twice as long, and after 300 ms without one",
        ),
        "robot.joints": ("{a.pos: ''}", ".a.pos: '' is not a unit such as degrees"),
        "server_address": ("robot.local", f": 'robot.local' {NOT_HOST_PORT}"),
        "fps": ("0.5", ": 0.5 is not in 1..1000"),
        "control_hz": ("45", ": 45 is not a whole multiple of fps 30"),
        "actions_per_chunk": ("0", ": 0 is not in 1..4096"),
        "chunk_size_threshold": ("1.5", ": 1.5 is not in 0..1"),
        "starve_risk": ("0", ": 0 is not in 0.0001..0.5"),
        "aggregate_fn_name": ("averag", ": 'averag' is no name, nor module:function; did you mean average?"),
        "similarity_tolerance": ("-1", ": -1 is not in 0..1000000"),
        "image_tolerance": ("256", ": 256 is not in 0.1..255"),
        "jpeg_quality": ("101", ": 101 is not in 0..100"),
        "extra_state": ("{goal: '0.2, 0.1'}", f".goal: '0.2, 0.1' {NOT_AN_ADDRESS}"),
        "auto_floor": ("1.5", ": 1.5 is not in 0..1"),
        "rtc.prefix_attention_schedule": ("soft", ": 'soft' is not"),
        "rtc.execution_horizon": ("-1", ": -1 is not in 0..4096"),
        "rtc.max_guidance_weight": ("-1", ": -1 is not in 0..1000"),
        "max_frame_age_s": ("0", ": 0 is not in 0.01..3600"),
        "max_joint_age_s": ("0", ": 0 is not in 0.01..3600"),
        "max_action_age_s": ("-1", ": -1 is not in 0.01..3600"),
        "episodes": ("-1", ": -1 is less than 0"),
        "reset_url": ("localhost:8090", f": 'localhost:8090' {NOT_AN_ADDRESS}"),
        "first_seed": ("-1", ": -1 is less than 0"),
        "duration_s": ("1e10", ": 10000000000 is not in 0..1000000000"),
        "priority": ("100", ": 100 is not in 1..99"),
        "cpu_affinity": ("0,4096", ": 4096 is not one of the processors here, which are "),
        "give_up_after_s": ("-1", ": -1 is not in 0..1000000000"),
        "metrics_port": ("65536", ": 65536 is not in 0..65535"),
        "tls.server_name": ("server", "tls.ca: is missing, and tls.server_name needs it"),
    },
    SETUP: {"joint": ("griper", ": 'griper' is no joint of this arm; did you mean gripper?")},
    SERVICE: {
        "action": ("instal", ": no 'instal': did you mean install?"),
        "user": ("nobody_by_that_name", ": there is no 'nobody_by_that_name' on this machine"),
    },
    PROFILE: {
        "similarity_tolerance": ("-1", ": -1 is not in 0..1000000"),
        "chunks": ("-1", ": -1 is less than 0"),
        "idle_gap_ms": ("60001", ": 60001 is not in 0..60000"),
        "frames": ("/no/such.mp4", ": /no/such.mp4 is not there, expected synthetic or the path of a video"),
    },
    TOP: {
        "url": ("http://127.0.0.1:port/metrics", f": 'http://127.0.0.1:port/metrics' {NOT_AN_ADDRESS}"),
        "every_s": ("0", ": 0 is not in 0.05..60"),
        "frames": ("-1", ": -1 is less than 0"),
    },
    DEMO: {
        "episodes": ("0", ": 0 is less than 1"),
        "first_seed": ("-1", ": -1 is less than 0"),
        "latency_ms": ("10001", ": 10001 is not in 0..10000"),
        "chunk_size_threshold": ("1", ": 1 is not in 0.01..0.99"),
        "sequential_actions": ("51", ": 51 is not in 1..50"),
    },
    ARM: {
        "http_port": ("-1", ": -1 is not in 0..65535"),
        "seed": ("-1", ": -1 is less than 0"),
        "robot_id": ("a/b", f": 'a/b' {NOT_A_CALIBRATION_FILE}virtual"),
        "cameras": ("{top: up}", ".top: 'up' is not one of static, wrist"),
        "camera_width": ("15", ": 15 is not in 16..2048"),
        "camera_height": ("2049", ": 2049 is not in 16..2048"),
        "camera_fps": ("0", ": 0 is not in 1..240"),
        "return_delay_us": ("-1", ": -1 is not in 0..100000"),
    },
    SERVER: {
        "bundles": (
            "act_so101_cube",
            "bundle: act_so101_cube is neither a folder nor a shipped bundle (did you mean act_",
        ),
        "metrics_port": ("65536", ": 65536 is not in 0..65535"),
        "listen": ("localhost", f": 'localhost' {NOT_HOST_PORT}"),
        "lerobot_listen": ("localhost", f": 'localhost' {NOT_HOST_PORT}"),
        "openpi_listen": ("localhost", f": 'localhost' {NOT_HOST_PORT}"),
        "openpi.answer_s": ("0", ": 0 is not in 0.1..3600"),
        "socket_group": ("robots", ": 127.0.0.1:8080 is not a Unix socket"),
        "limits.message_bytes": ("0", ": 0 is not in 65536..1073741824"),
        "limits.observation_bytes": ("0", ": 0 is not in 1024..4294967296"),
        "limits.image_side": ("0", ": 0 is not in 1..8192"),
        "limits.connections": ("8", ": 8 is less than max_sessions 16"),
        "limits.sessions_per_peer": ("1025", ": 1025 is not in 0..1024"),
        "limits.observations_per_second": ("-1", ": -1 is not in 0..1000000"),
        "limits.unread_answers": ("0", ": 0 is not in 1..65536"),
        "limits.handshake_s": ("0", ": 0 is not in 0.1..3600"),
        "limits.unfinished_s": ("0", ": 0 is not in 0.1..3600"),
        "limits.idle_s": ("-1", ": -1 is not in 0..1000000"),
        "provider_options": ("{cud: {device_id: 0}}", ".cud: takes no options; did you mean cuda?"),
        "trusted_proxies": ("10.0.0", ": '10.0.0' is neither an address nor a network"),
        "threads": ("1025", ": 1025 is not in 0..1024"),
        "max_sessions": ("0", ": 0 is not in 1..1024"),
        "max_batch": ("0", ": 0 is not in 1..1024"),
        "batch_window_ms": ("-1", ": -1 is not in 0..60000"),
        "inject_latency_ms": ("60001", ": 60001 is not in 0..60000"),
    },
    CERTS: {
        "hosts": ("[a b]", ": 'a b' is neither a name nor an address"),
        "days": ("0", ": 0 is not in 1..36500"),
    },
    MODELS: {"words": ("unlod", "models: no 'unlod': did you mean unload?")},
    EXPORT: {
        "checkpoint": ("no/such", f"torch is not installed: {extras.install('export')}"),
        "check": (
            "act_so101_cube",
            "bundle: act_so101_cube is neither a folder nor a shipped bundle (did you mean act_",
        ),
        "robot.type": (
            "so10_follower",
            ": so10_follower is not in the table, did you mean so101_follower? (else give ",
        ),
        "names": ("a,b,a", ": a,b,a; expected different names, none of them empty"),
        "units": ("m,s", ": 2 for 3 names; expected one for all or one for each"),
        "fps": ("0", ": 0 is not in 0.1..1000"),
        "state_numbers": ("0", ": 0 is not in 1..4096"),
        "prefix": ("prefix.onnx", ": a flow's prefix and steps belong to an ONNX file, not to a checkpoint"),
        "steps": ("0", ": 0 is not in 1..1000"),
        "image_size": ("{top: 640}", ".top: '640' is not WIDTHxHEIGHT, such as 640x480"),
    },
}
# Where any value of the type is right, or only a server or an arm can tell.
FREE = {
    EXPORT: {"cameras": "policy_server/export/test_flow_policies.py"},
    SERVER: {"device": "engines/test_lerobot.py", "openpi.api_key_file": "extras/test_openpi_upstream.py"},
    START: {
        "model": "test_servers.py",
        "task": "any text",
        "rename_map": "test_what_does_not_go_together",
        "robot.rest_pose": "test_devices.py",
    },
}
CODES = {
    (SERVICE, "action"): 64,
    (MODELS, "words"): 64,
    (SERVER, "bundles"): 64,
    (EXPORT, "check"): 64,
    (EXPORT, "prefix"): 64,
    (PROFILE, "frames"): 74,
}
BEFORE: dict[tuple[str, str], tuple[str, ...]] = {
    **{(START, name): NOBODY for name in ("server_address", "aggregate_fn_name", "extra_state", "cpu_affinity")},
    (START, "robot.joints"): ("--robot.type=none",),
    (SERVICE, "action"): (),
    (SERVICE, "user"): ("install", "--config_path={folder}/config.yaml"),
    (SERVER, "bundles"): (),
    (MODELS, "words"): (),
    (EXPORT, "checkpoint"): ("--output=x", "--fps=30", "--robot.type=so101_follower"),
    (EXPORT, "check"): (),
    (EXPORT, "prefix"): ("c", "--output=x", "--fps=30", "--robot.type=so101_follower"),
    (EXPORT, "robot.type"): ("c", "--output=x", "--fps=30"),
    (EXPORT, "names"): ("c", "--output=x", "--fps=30", "--units=m"),
    (EXPORT, "units"): ("c", "--output=x", "--fps=30", "--names=a,b,c"),
}
POSITIONAL = ("action", "words", "bundles", "checkpoint")


def is_closed(kind: Any) -> bool:
    """Whether its type alone says what is right."""
    return all(each in (bool, type(None)) or schema.is_literal(each) for each in schema.members(kind))


def test_every_setting_has_a_row_here_or_among_the_files() -> None:
    words: dict[tuple[str, str], list[str]] = {}  # that have the same setting
    for word, described in WORDS.items():
        for setting in schema.settings(described.settings):
            words.setdefault((setting.name, str(setting.kind)), []).append(word)
    missing = [
        f"{each.word} {each.name}"
        for each in settings()
        if not is_closed(each.kind)
        if not any(
            each.name in VALUES.get(word, {}) | FREE.get(word, {}) | FILES.get(word, {})
            for word in words[each.name, str(each.kind)]
        )
    ]
    assert missing == []
    assert is_closed(Literal["a"] | bool | None)


ROWS = [(word, name, *row) for word, rows in VALUES.items() for name, row in rows.items()]


@pytest.mark.parametrize(("word", "name", "value", "said"), ROWS, ids=lambda v: str(v) if "." in v else v)
def test_a_value_that_cannot_be(answer: Answer, tmp_path: Any, word: str, name: str, value: str, said: str) -> None:
    (tmp_path / "config.yaml").write_text("robot: {type: none, joints: {a: m}}")
    flag = name.replace("NAME", "front")
    before = [each.format(folder=tmp_path) for each in BEFORE.get((word, name), WORDS[word].fitting)]
    given = [value] if name in POSITIONAL else [*context(WORDS[word].settings, name), f"--{flag}={value}"]
    code, line = answer(word, *before, *given)
    assert line.startswith(said if said[0].isalpha() else flag + said)
    assert code == CODES.get((word, name), 78)


NO_UTF8 = "\udcff\udcfe"  # as Python reads the bytes ff fe of a command line
MORE = [  # word, flag, value, what is said
    (START, "task", NO_UTF8, "task: '\\udcff\\udcfe' is not text in UTF-8"),
    (START, "task_file", f"/{NO_UTF8}", "task_file: '/\\udcff\\udcfe' is not text in UTF-8"),
    (START, f"rename_map.{NO_UTF8}", "b", "rename_map: '\\udcff\\udcfe' is not text in UTF-8"),
    (START, "task", "x" * 1025, "task: 1025 characters, expected at most 1024"),
    (START, "robot.id", "x" * 129, f"robot.id: '{'x' * 56}... {NOT_A_CALIBRATION_FILE}my_arm"),
    (START, "robot.id", "a\nb", f"robot.id: 'a\\nb' {NOT_A_CALIBRATION_FILE}my_arm"),
    (ARM, "robot_id", "x" * 129, f"robot_id: '{'x' * 56}... {NOT_A_CALIBRATION_FILE}virtual"),
    (START, "similarity_tolerance", "1e39", "similarity_tolerance: 1e+39 is not in 0..1000000"),
    (START, "give_up_after_s", "1e10", "give_up_after_s: 10000000000 is not in 0..1000000000"),
    (START, "extra_state", "{a: 'http://127.0.0.1/é'}", f"extra_state.a: 'http://127.0.0.1/é' {NOT_AN_ADDRESS}"),
    (START, "extra_state", "{a: 'http://a..b/'}", f"extra_state.a: 'http://a..b/' {NOT_AN_ADDRESS}"),
    (START, "reset_url", "http://127.0.0.1/a b", f"reset_url: 'http://127.0.0.1/a b' {NOT_AN_ADDRESS}"),
    (START, "server_address", "127.0.0.1:0", f"server_address: '127.0.0.1:0' {NOT_HOST_PORT}"),
    *(
        (word, name, address, f"{name}: '{address}' {NOT_HOST_PORT}")
        for word, name in ((START, "server_address"), (SERVER, "listen"))
        for address in (
            *("http://127.0.0.1:28180", "[::1", "[::1:80", "::1:80", "dns:///x:80", "ipv4:127.0.0.1:80", "a b:80"),
            *("a..b:80", ":80", "host:", "host:65536", "host:٨٠", "host:-1", f"host:{'9' * 9}", "[x]:80"),
        )
    ),
    *(
        (word, name, address, f"{name}: '{address}' is not unix:/PATH of at most 107 bytes")
        for word, name in ((START, "server_address"), (SERVER, "listen"))
        for address in ("unix:", "unix:~/x.sock", "unix:rel.sock")
    ),
]


@pytest.mark.parametrize(("word", "flag", "value", "said"), MORE, ids=ascii)
def test_another_value_that_cannot_be(answer: Answer, word: str, flag: str, value: str, said: str) -> None:
    code, line = answer(
        word, *BEFORE.get((word, flag), NOBODY if flag == "task" else WORDS[word].fitting), f"--{flag}={value}"
    )
    assert line.startswith(said)
    assert code == 78


@pytest.mark.parametrize("setting", list(settings()), ids=lambda setting: f"{setting.word} {setting.name}")
def test_a_nul_is_in_no_text(answer: Answer, tmp_path: Path, setting: Setting) -> None:
    """Only a file can hold one; the names of files and of everything else would end there."""
    if not WORDS[setting.word].reads_files or not {str, Path} & set(schema.members(setting.kind)):
        return
    file = tmp_path / "config.yaml"
    file.write_text(nested(setting.flag, "a\0b"))
    fitting = WORDS[setting.word].without(setting.flag)
    code, said = answer(setting.word, *fitting, *setting.context, f"--config_path={file}")
    assert (code, said) == (78, f"{setting.flag}: 'a\\x00b' holds a NUL, which no text may")


TOGETHER = [
    (START, "--episodes=3", 78, "episodes: needs reset_url, which places the scene for each episode"),
    (START, "--task=fold --task_file=task.txt", 78, "task_file: task is given too; the robot is told one or the other"),
    (
        START,
        "--bundle=b --server_address=h:1",
        78,
        "server_address: bundle is given too, and starts a server of its own",
    ),
    (START, "--tls.cert=robot.crt", 78, "tls.key: is missing; cert and key belong together"),
    (START, "--tls.cert=robot.crt --tls.key=robot.key", 78, "tls.ca: is missing, and tls.cert needs it"),
    (
        START,
        "{nobody} --tls.ca=ca.crt --server_address=unix:/x",
        78,
        "tls.ca: unix:/x is a Unix socket, which has no TLS",
    ),
    (
        START,
        "{nobody} --server_address=10.0.0.1:80",
        78,
        "server_address: 10.0.0.1:80 is beyond loopback, and there is no",
    ),
    (
        START,
        "{nobody} --server_address=10.0.0.1:80 --insecure --token_file=t",
        78,
        "token_file: the token would go to 10.0.0.1:80 unencrypted; tls.ca turns TLS on",
    ),
    (START, "{front} --rename_map.frnt=top", 78, "rename_map.frnt: the robot has no such camera; did you mean front?"),
    (
        START,
        "{front} --robot.cameras.top.type=synthetic --rename_map.front=top",
        78,
        "rename_map: front and top would both be top",
    ),
    (PROFILE, "--mode=sequential", 78, "mode: the profiler measures mode=async"),
    (ARM, "--cameras=top,left,right", 78, "cameras: 3 names for 2 cameras; a mapping may repeat them"),
    (SETUP, "--robot.type=none", 78, "robot.type: none is not an SO-100 or SO-101"),
    (SERVER, "", 64, "bundle: none given: policy-server start BUNDLE"),
    (SERVER, "b --tls.key=k", 78, "tls.cert: is missing; cert and key belong together"),
    (SERVER, "b --tls.client_ca=ca", 78, "tls.cert: is missing, and tls.client_ca needs it"),
    (
        SERVER,
        "b --listen=unix:/s --tls.cert=c --tls.key=k",
        78,
        "tls.cert: a Unix socket has no TLS; its mode says who",
    ),
    (SERVER, "b --max_sessions=200", 78, "limits.connections: 128 is less than max_sessions 200"),
    (SERVER, "act_so101_pick_place act_so101_pick_place", 64, "bundle: "),
    (MODELS, "list", 64, "admin_socket is missing: --admin_socket=PATH, as the server was started with"),
    (MODELS, "load", 64, "models: expected list, load BUNDLE, replace BUNDLE or unload NAME"),
    (EXPORT, "", 64, "checkpoint is missing: export-onnx CHECKPOINT"),
    (EXPORT, "c", 64, "output is missing: --output=DIR"),
    (
        EXPORT,
        "c --output=x",
        64,
        "fps is missing: --fps=30, the rate that the policy was trained at; and --robot.type, or",
    ),
    (EXPORT, "c --output=x --names=a --units=degrees", 64, "fps is missing: --fps=30, the rate that the policy was t"),
    (EXPORT, "c --output=x --fps=30", 78, "robot.type: a checkpoint holds neither joint names nor units; give it, or"),
    (EXPORT, "c --output=x --fps=30 --names=a", 78, "robot.type: a checkpoint holds neither joint names nor units"),
    (
        EXPORT,
        "c --output=x --fps=30 --robot.type=so101_follower --units=m",
        78,
        "robot.type: names and units come from",
    ),
    (EXPORT, "c --check=b", 64, "checkpoint: --check looks at a bundle that is there; leave out one of the two"),
    (EXPORT, "--check=b --output=x", 64, "output: --check looks at a bundle that is there; leave out one of the two"),
    ("edge-runtime replay-fault", "a b", 64, "unexpected argument 'b': see edge-runtime replay-fault --help"),
]


@pytest.mark.parametrize(("word", "flags", "code", "said"), TOGETHER)
def test_what_does_not_go_together(answer: Answer, word: str, flags: str, code: int, said: str) -> None:
    front = "--robot.type=none --robot.cameras.front.type=synthetic"
    words = flags.format(nobody=" ".join(NOBODY), front=front).split()
    if word == START and not any(each.startswith("--robot.type") for each in words):
        words.append("--robot.type=so101_follower")
    got, line = answer(word, *words)
    assert line.startswith(said)
    assert got == code
