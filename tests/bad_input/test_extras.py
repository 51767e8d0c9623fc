"""Without an extra every command says in one line which it needs, and how to install it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest

from edge_runtime.program import extras

ACT = "act_so101_pick_place"
NO_ROBOT = ("--robot.type=none", "--robot.joints={a.pos: degrees}", "--duration_s=0.2", "--status=false")
COMMANDS = {  # up to its first step
    "start": ("edge_runtime", "start", *NO_ROBOT, f"--bundle=policy_server/bundles/{ACT}"),
    "start with metrics": ("edge_runtime", "start", *NO_ROBOT, "--metrics_port=0", "--server_address=unix:/none"),
    "doctor": ("edge_runtime", "doctor", "--robot.type=none", f"--bundle=policy_server/bundles/{ACT}"),
    "setup-motors": ("edge_runtime", "setup-motors", "--robot.type=so101_follower", "--robot.port=/none"),
    "calibrate": ("edge_runtime", "calibrate", "--robot.type=so101_follower", "--robot.port=/none"),
    "replay-fault": ("edge_runtime", "replay-fault", "FAULT", "--plot=PLOT.png"),
    "edge service": ("edge_runtime", "service", "status"),
    "profile": ("edge_runtime", "profile", f"--bundle=policy_server/bundles/{ACT}", "--frames=1"),
    "top": ("edge_runtime", "top", "--url=http://127.0.0.1:1/metrics"),
    "demo": ("edge_runtime", "demo", "--episodes=1"),
    "virtual-arm": ("edge_runtime", "virtual-arm", "--http_port=0", "--cameras=[]", "--until_stdin_closes=true"),
    "server": ("policy_server", "start", ACT, "--listen=127.0.0.1:0", "--until_stdin_closes=true"),
    "server with LeRobot": (
        *("policy_server", "start", "tests/checkpoints/act_so101_pick_place", "--engine=lerobot"),
        *("--fps=30", "--robot.type=so101_follower", "--listen=127.0.0.1:0", "--until_stdin_closes=true"),
    ),
    "server with openpi": (
        *("policy_server", "start", ACT, "--listen=127.0.0.1:0", "--openpi_listen=127.0.0.1:0"),
        "--until_stdin_closes=true",
    ),
    "make-certs": ("policy_server", "make-certs", "CERTIFICATES"),
    "models": ("policy_server", "models", "list", "--socket=/none"),
    "server service": ("policy_server", "service", "status"),
    "export": (
        *("policy_server.export.cli", "tests/checkpoints/act_so101_pick_place", "--output=BUNDLE"),
        *("--fps=30", "--robot.type=so101_follower"),
    ),
    "check": ("policy_server.export.cli", f"--check={ACT}"),
}
BEYOND = {
    "start": "server",
    "server": "server",
    "server with openpi": "server",
    "make-certs": "server",
    "top": "top",
}
HOOK = """
import os, sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in os.environ["HIDDEN"].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
"""


def run(command: str, hidden: Iterable[str], folder: Path) -> tuple[int, str]:
    """Exit code and stderr of a command that cannot import `hidden`, nor can its children."""
    (folder / "sitecustomize.py").write_text(HOOK)
    arguments = [word.replace("PLOT", str(folder / "plot")) for word in COMMANDS[command]]
    arguments = [word.replace("BUNDLE", str(folder / "bundle")) for word in arguments]
    arguments = [str(folder / "certificates") if word == "CERTIFICATES" else word for word in arguments]
    environment = os.environ | {"PYTHONPATH": str(folder), "HIDDEN": ",".join(hidden)}
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment,
        timeout=200,
        check=False,
    )
    return done.returncode, done.stderr


def check(command: str, hidden: Iterable[str], folder: Path) -> str:
    code, said = run(command, hidden, folder)
    assert "internal error" not in said
    assert "Traceback" not in said
    assert code != 70
    assert code == 78 or "is not installed" not in said
    return said if code == 78 else ""


@pytest.mark.parametrize("command", ["server", "server with openpi", "make-certs", "top", "start with metrics"])
def test_without_any_extra_one_line_says_how_to_install_it(command: str, tmp_path: Path) -> None:
    said = check(command, extras.EXTRAS, tmp_path)
    assert said.count("\n") == 1
    assert f"is not installed: {extras.install(BEYOND.get(command, 'metrics'))}" in said


@pytest.mark.long
@pytest.mark.parametrize(("command", "extra"), [*((command, "all") for command in COMMANDS), *BEYOND.items()])
def test_no_command_ends_with_an_internal_error_where_an_extra_is_missing(
    command: str, extra: str, tmp_path: Path
) -> None:
    said = check(command, [m for m, e in extras.EXTRAS.items() if extra in (e, "all")], tmp_path)
    if extra in ("all", BEYOND.get(command)):
        assert "pip install '" in said or command not in BEYOND


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'edge-runtime[server]'"),  # from the index
        ({"url": "file:///clone", "dir_info": {"editable": True}}, "pip install '.[server]'"),
        ({"url": "file:///a.whl", "archive_info": {}}, "pip install 'edge-runtime[server] @ file:///a.whl'"),
    ],
)
def test_the_command_fits_how_this_was_installed(origin: object, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps(origin) if origin else None
    monkeypatch.setattr(metadata.Distribution, "read_text", lambda self, name: text)
    monkeypatch.setattr(metadata.PathDistribution, "read_text", lambda self, name: text)
    assert extras.install("server") == command
