"""Files that a setting names: missing, in the way, empty, damaged, not what they claim, or out of reach."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from edge_runtime.program import output
from policy_server.door.certificates import make, write
from tests.bad_input.conftest import Answer, open_to_all

NOBODY_ID = 65534
NOBODY = ("--robot.type=none", "--robot.joints.a.pos=degrees", "--give_up_after_s=0.1")
NOT_A_BUNDLE = "bundle: {path} is neither a folder nor a shipped bundle (shipped are [act_so101_cubes, "
NO_FILE = "No such file or directory"
LOOK = "{path}: this user may not look there"

# What lies at {path} when the program comes. The last two are out of reach for a user who is not root.
PLACES: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "in no folder": lambda path: path.parent.rmdir(),
    "below a file": lambda path: (path.parent.rmdir(), path.parent.write_text("")),
    "a folder": lambda path: path.mkdir(),
    "empty": lambda path: (path.write_bytes(b""), path.chmod(0o600)),
    "binary": lambda path: (path.write_bytes(bytes(range(255, 0, -1))), path.chmod(0o600)),
    "half": lambda path: (path.write_text('{"robot": {\n  "type":'), path.chmod(0o600)),
    "a pipe": lambda path: os.mkfifo(path, 0o600),
    "an endless device": lambda path: path.symlink_to("/dev/zero"),
    "a socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
    "locked": lambda path: (path.write_text("{}"), path.chmod(0)),
    "locked away": lambda path: (path.write_text("{}"), path.parent.chmod(0)),
}
Expected = dict[str, tuple[int, str]]  # place -> exit code, and what is said after the setting's name


def read(code: int = 78, locked: int = 78, cannot: str = "cannot read {path}: ") -> Expected:
    """Of a file that is only read."""
    return {
        "missing": (code, cannot + NO_FILE),
        "in no folder": (code, cannot + NO_FILE),
        "below a file": (code, cannot + "Not a directory"),
        "a folder": (code, cannot + "Is a directory"),
        "a socket": (code, cannot + "No such device or address"),
        "locked": (locked, cannot + "Permission denied"),
        "locked away": (locked, cannot + "Permission denied"),
    }


def regular(cannot: str = "cannot read {path}: ") -> Expected:
    """Of a file that no pipe can stand for."""
    return read(cannot=cannot) | dict.fromkeys(("a pipe", "an endless device"), (78, cannot + "Not a regular file"))


def secret(what: str) -> Expected:
    """Of a token, key or certificate."""
    return {
        "missing": (78, "cannot read {path}: no such file or directory"),
        "below a file": (78, "cannot read {path}: not a directory"),
        "a folder": (78, "cannot read {path}: is a directory"),
        "a pipe": (78, "cannot read {path}: not a regular file"),
        "empty": (78, what),
        "binary": (78, what),
        "half": (78, what),
        "locked": (77, f"{{path}} may not be read by user {NOBODY_ID}"),
        "locked away": (77, f"{{path}} may not be read by user {NOBODY_ID}"),
    }


WRITTEN: Expected = {
    "in no folder": (73, "there is no folder {folder}"),
    "below a file": (73, "there is no folder {folder}"),
    "a folder": (73, "{path} is a folder, expected a file"),
    "a pipe": (73, "{path} is neither a file nor a device such as /dev/null"),
    "a socket": (73, "{path} is neither a file nor a device such as /dev/null"),
    "locked": (73, "{path} may not be written by this user"),
    "locked away": (73, "{path} may not be looked for by this user"),
}
FOLDER: Expected = {
    "below a file": (73, "cannot make the folder {path}: Not a directory"),
    "empty": (73, "{path} is not a folder"),
    "locked": (73, "{path} is not a folder"),
    "locked away": (73, "cannot make the folder {path}: Permission denied"),
}
SOCKET: Expected = {
    "in no folder": (73, "{path}: no such file or directory"),
    "below a file": (73, "{path}: not a directory"),
    "a folder": (73, "{path}: is there and is not a socket"),
    "empty": (73, "{path}: is there and is not a socket"),
    "locked away": (77, LOOK),
}
BUNDLE: Expected = {
    "missing": (64, NOT_A_BUNDLE),
    "empty": (64, NOT_A_BUNDLE),
    "a folder": (65, "bundle: {path} is not a bundle, it has no manifest.json"),
    "locked away": (77, LOOK),
}
CERTIFICATE = secret("{path} holds no certificate in PEM")
KEY = secret("{path} holds no private key in PEM")
TOKENS = secret("{path} does not hold tokens of 16 to 512 letters and digits, one a line")
DAMAGED: Expected = {
    "binary": (78, "config_path: {path} is not text in UTF-8"),
    "an endless device": (78, "config_path: {path} has more than 1048576 characters"),
    "half": (78, "{path}: line 2: expected the node content, but found '<stream end>'"),
}

START, PROFILE, SERVER = "edge-runtime start", "edge-runtime profile", "policy-server start"
FILES: dict[str, dict[str, Expected]] = {
    START: {
        "config_path": read() | DAMAGED,
        "bundle": {
            "missing": (65, NOT_A_BUNDLE),
            "a folder": (65, "bundle: {path} is not a bundle, it has no manifest.json"),
        },
        "task_file": regular() | {"binary": (78, "{path} is not text in UTF-8")},
        "fault_folder": FOLDER,
        "summary": WRITTEN,
        "queue_log": WRITTEN,
        "tls.ca": CERTIFICATE,
        "tls.cert": CERTIFICATE,
        "tls.key": KEY,
        "token_file": TOKENS,
        "robot.calibration_dir": {"missing": (78, "robot.id: 'it' has no calibration file {path}/it.json")},
    },
    PROFILE: {"json": WRITTEN, "html": WRITTEN},
    "edge-runtime replay-fault": {
        "file": regular("{path} cannot be read: ")
        | {
            "empty": (78, "{path} is empty"),
            "binary": (78, "{path} is not JSON, nor text at all"),
            "half": (78, "{path} is not JSON: line 2: expecting value"),
        }
    },
    "edge-runtime service": {
        "config_path": read() | DAMAGED,
        "root": {"missing": (78, "{path} is not a folder"), "empty": (78, "{path} is not a folder")},
    },
    "edge-runtime demo": {"output": FOLDER},
    "edge-runtime virtual-arm": {
        "link": {
            "in no folder": (73, "cannot create {path}: No such file or directory"),
            "below a file": (73, "cannot create {path}: Not a directory"),
            "empty": (73, "cannot create {path}: File exists"),
            "locked away": (77, LOOK),
        },
        "calibration_dir": {
            place: (code, f"calibration {{path}}/virtual.json: {said}") for place, (code, said) in FOLDER.items()
        },
    },
    SERVER: {
        "bundles": BUNDLE,
        "model_dir": {
            "missing": (64, "{path} is not a folder"),
            "empty": (64, "{path} is not a folder"),
            "a folder": (64, "{path} has no folder with a manifest.json"),
            "locked away": (77, LOOK),
        },
        "admin_socket": SOCKET,
        "listen": {
            "in no folder": (73, "there is no folder {folder}"),
            "a folder": (73, "unix:{path}: is there and is not a socket"),
            "locked away": (77, LOOK),
        },
        "tls.cert": CERTIFICATE,
        "tls.key": KEY,
        "tls.client_ca": CERTIFICATE,
        "token_file": TOKENS,
        "map": read()
        | {
            "binary": (78, "{path} is not text in UTF-8"),
            "half": (78, "{path}: line 2: expected the node content, but found '<stream end>'"),
            "empty": (78, "does not say where policy act_so101_pick_place finds [observation.state, "),
        },
        "cache_dir": {},  # made when TensorRT builds an engine: tests/policy_server/gpu
    },
    "policy-server make-certs": {"dir": {**FOLDER, "locked away": (77, "{path}/ca.crt: this user may not look there")}},
    "policy-server models": {
        "admin_socket": {
            "missing": (69, "{path}: no such file or directory"),
            "a folder": (69, "{path}: is not a socket"),
            "empty": (69, "{path}: is not a socket"),
            "locked away": (77, LOOK),
        }
    },
    "export-onnx": {
        "check": BUNDLE,
        **{name: {} for name in ("checkpoint", "output", "stats", "tokenizer")},
    },
}
FLAGS = {
    ("edge-runtime service", "config_path"): ("install", "--user=me"),
    ("edge-runtime service", "root"): ("status",),
    ("edge-runtime demo", "output"): ("--policy=state",),
    ("edge-runtime virtual-arm", "link"): ("--http_port=0",),
    ("edge-runtime virtual-arm", "calibration_dir"): ("--http_port=0",),
    ("policy-server models", "admin_socket"): ("list",),
    (START, "robot.calibration_dir"): ("--robot.type=so101_follower", "--robot.port=/dev/x", "--robot.id=it"),
    (START, "tls.cert"): (*NOBODY, "--tls.ca={pki}/ca.crt", "--tls.key={pki}/robot.key"),
    (START, "tls.key"): (*NOBODY, "--tls.ca={pki}/ca.crt", "--tls.cert={pki}/robot.crt"),
    (SERVER, "map"): ("act_so101_pick_place", "--openpi_listen=127.0.0.1:0"),
    (SERVER, "tls.cert"): ("act_so101_pick_place", "--tls.key={pki}/server.key"),
    (SERVER, "tls.key"): ("act_so101_pick_place", "--tls.cert={pki}/server.crt"),
    (SERVER, "tls.client_ca"): ("act_so101_pick_place", "--tls.cert={pki}/server.crt", "--tls.key={pki}/server.key"),
}
BEFORE = {START: NOBODY, PROFILE: NOBODY, SERVER: ("act_so101_pick_place", "--listen=127.0.0.1:0")}
WORDS_WITHOUT_FLAG = ("file", "bundles", "dir")
ROWS = [
    (word, name, place, *expected)
    for word, names in FILES.items()
    for name, places in names.items()
    for place, expected in places.items()
]


@contextmanager
def user(ordinary: bool) -> Iterator[None]:
    """As a user who may not do everything, if `ordinary`."""
    lowered = ordinary and os.geteuid() == 0
    if lowered:
        os.seteuid(NOBODY_ID)
    try:
        yield
    finally:
        if lowered:
            os.seteuid(0)


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A name in a folder that everybody can reach."""
    open_to_all(tmp_path)
    place = tmp_path / "place"
    place.mkdir()
    yield place / "it"
    if place.exists():
        place.chmod(0o755)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca, server and robot, as `policy-server make-certs` writes them; everybody may read them."""
    folder = tmp_path_factory.mktemp("certificates")
    write(folder, make(["localhost"], timedelta(days=1)))
    open_to_all(folder)
    for file in folder.iterdir():
        file.chmod(0o640 if file.suffix == ".key" else 0o644)
        os.chown(file, -1, os.getegid())
    return folder


LONG = [
    ("edge-runtime start", "--summary={path}", *NOBODY),
    ("edge-runtime start", "--bundle={path}", *NOBODY),
    ("edge-runtime start", "--robot.calibration_dir={path}", *FLAGS[START, "robot.calibration_dir"]),
    ("edge-runtime profile", "--json={path}", *NOBODY),
    ("edge-runtime service", "--root={path}", "status"),
    ("edge-runtime virtual-arm", "--link={path}", "--http_port=0", "--cameras=[]"),
    ("policy-server start", "{path}"),
    ("policy-server start", "--model_dir={path}"),
    ("policy-server start", "--admin_socket={path}", "act_so101_pick_place", "--listen=127.0.0.1:0"),
    ("policy-server make-certs", "{path}"),
    ("policy-server models", "--admin_socket={path}", "list"),
    ("export-onnx", "--check={path}"),
]


@pytest.mark.parametrize("case", LONG, ids=" ".join)
@pytest.mark.parametrize("name", ["x" * 256, "/".join(["x" * 200] * 21)], ids=["name", "path"])
def test_a_name_that_is_too_long(answer: Answer, tmp_path: Path, case: tuple[str, ...], name: str) -> None:
    word, flag, *before = case
    code, said = answer(word, *before, flag.format(path=f"{tmp_path}/{name}"))
    assert said.lower().endswith(("is longer than the name of a file may be", "file name too long"))
    assert code in (65, 73, 78)


def test_devices_and_pipes_that_somebody_reads_may_be_written() -> None:
    ends = os.pipe()
    try:
        for path in ("/dev/null", "/dev/full", f"/dev/fd/{ends[1]}", f"/proc/self/fd/{ends[1]}"):
            output.check(Path(path), "summary")
    finally:
        for end in ends:
            os.close(end)


@pytest.mark.parametrize(("word", "name", "place", "code", "said"), ROWS, ids=lambda v: v if isinstance(v, str) else "")
def test_a_file(
    answer: Answer, path: Path, certificates: Path, word: str, name: str, place: str, code: int, said: str
) -> None:
    PLACES[place](path)
    before = [each.format(pki=certificates) for each in FLAGS.get((word, name), BEFORE.get(word, ()))]
    given = str(path) if name in WORDS_WITHOUT_FLAG else f"--{name}={'unix:' * (name == 'listen')}{path}"
    if name == "bundles":
        before = []
    with user(ordinary=place.startswith("locked")):
        got, line = answer(word, *before, given)
    expected = said.format(path=path, folder=path.parent)
    assert line.startswith((expected, f"{name}: {expected}"))
    assert got == code
