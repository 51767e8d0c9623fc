"""The systemd units: what systemd itself says of them, and `service install|uninstall|status` in another root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

import pytest

from edge_runtime import cli
from edge_runtime.errors import AccessError, ConfigError, OutputError, UsageError
from edge_runtime.program import systemd
from policy_server import cli as server_cli
from policy_server import config as server_config

PORT = "/dev/serial/by-id/usb-1a86_USB_Single_Serial_58FA083324-if00"
DEVICE = r"dev-serial-by\x2did-usb\x2d1a86_USB_Single_Serial_58FA083324\x2dif00.device"
SCRIPTS = Path(sysconfig.get_path("scripts"))

needs_systemctl = pytest.mark.skipif(shutil.which("systemctl") is None, reason="no systemctl here")
needs_analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Another system, whose configurations are in place."""
    settings = tmp_path / "etc/edge-runtime/config.yaml"
    settings.parent.mkdir(parents=True)
    settings.write_text(f"robot:\n  type: so101_follower\n  port: {PORT}\n  id: my_arm\n")
    settings = tmp_path / "etc/policy-server/config.yaml"
    settings.parent.mkdir()
    settings.write_text("bundles: [act_so101_pick_place]\n")
    return tmp_path


def edge(root: Path, *words: str) -> int:
    return cli.dispatch(["service", *words, f"--root={root}"])


def unit(root: Path, name: str = "edge-runtime") -> list[str]:
    return (root / f"etc/systemd/system/{name}.service").read_text().splitlines()


# The units.


@needs_analyze
@pytest.mark.parametrize(("name", "dispatch"), [("edge-runtime", cli.dispatch), ("policy-server", server_cli.dispatch)])
def test_systemd_has_nothing_to_say(root: Path, name: str, dispatch: object) -> None:
    assert dispatch(["service", "install", "--user=daemon", f"--root={root}"]) == 0
    file = root / f"etc/systemd/system/{name}.service"
    checked = subprocess.run(["systemd-analyze", "verify", str(file)], capture_output=True, text=True, timeout=60)
    assert (checked.returncode, checked.stderr) == (0, "")


@needs_systemctl
def test_what_the_robots_unit_promises(root: Path) -> None:
    edge(root, "install", "--user=daemon")
    lines = unit(root)
    command = f"{SCRIPTS}/edge-runtime start --give_up_after_s=0 --config_path=/etc/edge-runtime/config.yaml"
    assert f"ExecStart={command}" in lines
    assert os.access(SCRIPTS / "edge-runtime", os.X_OK)
    for promise in (
        "Type=notify",
        "NotifyAccess=main",
        "WatchdogSec=10",
        "Restart=on-failure",
        "RestartPreventExitStatus=64 65 76 77 78",
        "KillMode=control-group",
        "TimeoutStopSec=75",
        "LimitRTPRIO=99",
        "LimitMEMLOCK=infinity",
        "User=daemon",
        f"Requires={DEVICE}",
        f"After={DEVICE}",
        f"WantedBy=multi-user.target {DEVICE}",
    ):
        assert promise in lines
    hiding = ("PrivateDevices", "DevicePolicy", "ProtectClock", "RestrictRealtime", "ProtectHome", "PrivateTmp")
    assert not [line for line in lines if line.startswith(hiding)]


def test_exit_codes_that_are_not_restarted_are_those_of_the_errors() -> None:
    text = (Path(systemd.__file__).parents[1] / "edge-runtime.service").read_text()
    named = next(line for line in text.splitlines() if line.startswith("RestartPreventExitStatus"))
    codes = {int(code) for code in named.partition("=")[2].split()}
    from edge_runtime import errors

    final = (errors.UsageError, errors.ModelError, errors.ProtocolError, errors.AccessError, errors.ConfigError)
    assert codes == {error.exit_code for error in final}


def test_the_arm_comes_to_rest_before_systemd_loses_patience() -> None:
    from edge_runtime.config import SO101FollowerConfig
    from edge_runtime.motors.stopping import RAMP_S
    from edge_runtime.runtime import STOPPED_WITHIN_S

    text = (Path(systemd.__file__).parents[1] / "edge-runtime.service").read_text()
    assert f"TimeoutStopSec={STOPPED_WITHIN_S:.0f}" in text
    SO101FollowerConfig(park_timeout_s=60)
    with pytest.raises(ConfigError, match="park_timeout_s"):
        SO101FollowerConfig(park_timeout_s=61)
    assert STOPPED_WITHIN_S > 60 + RAMP_S + 10


@pytest.mark.parametrize("port", ["/dev/ttyACM0", "/dev/pts/3", ""])
def test_a_port_without_a_stable_name_is_no_dependency(port: str) -> None:
    program = systemd.Program("edge-runtime", "edge_runtime", (), lambda path: systemd.Needs())
    text = systemd.render(program, ["/bin/true"], "daemon", ["dialout"], systemd.Needs(port=port))
    assert ".device" not in text
    assert "\nWantedBy=multi-user.target\n" in text


@pytest.mark.parametrize("path", [PORT, "/dev/serial/by-path/pci-0000:00:14.0-usb-0:2:1.0", "/dev/ä b"])
@pytest.mark.skipif(shutil.which("systemd-escape") is None, reason="no systemd-escape here")
def test_devices_are_named_as_systemd_names_them(path: str) -> None:
    escape = ["systemd-escape", "--path", "--suffix=device", path]
    assert systemd.device_unit(path) == subprocess.run(escape, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize(
    ("word", "quoted"),
    [("/opt/bin/x", "/opt/bin/x"), ("/my arm/x", '"/my arm/x"'), ("50%", "50%%"), ("a$b", "a$$b"), ('"', '"\\""')],
)
def test_words_of_a_command_line_stay_words(word: str, quoted: str) -> None:
    assert systemd.quote(word) == quoted


# install, uninstall, status.


@needs_systemctl
def test_install_status_uninstall(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert edge(root, "status") == systemd.NO_UNIT
    assert "is not installed: sudo" in capsys.readouterr().out
    assert edge(root, "install", "--user=daemon") == 0
    links = {path.parent.name for path in root.rglob("*.service") if path.is_symlink()}
    assert links == {"multi-user.target.wants", f"{DEVICE}.wants"}
    assert "start --give_up_after_s=0" in capsys.readouterr().out
    assert edge(root, "status") == systemd.NOT_RUNNING
    assert edge(root, "install", "--user=daemon") == 0  # again, as after an upgrade
    assert edge(root, "uninstall") == 0
    assert not [path for path in root.rglob("*.service") if path.exists() or path.is_symlink()]
    assert (root / "etc/edge-runtime/config.yaml").exists()
    assert edge(root, "uninstall") == 0


@needs_systemctl
def test_the_files_own_patience_wins(root: Path) -> None:
    with (root / "etc/edge-runtime/config.yaml").open("a") as file:
        file.write("give_up_after_s: 60\n")
    edge(root, "install", "--user=daemon")
    assert not [line for line in unit(root) if "--give_up_after_s" in line]


def test_a_configuration_that_cannot_start_is_not_installed(root: Path) -> None:
    (root / "etc/edge-runtime/config.yaml").write_text("robot:\n  type: so101_follower\n  prot: x\n")
    with pytest.raises(ConfigError, match=r"robot.prot: .*did you mean robot.port"):
        edge(root, "install", "--user=daemon")
    with pytest.raises(ConfigError, match=r"cannot read .*/elsewhere.yaml"):
        edge(root, "install", "--user=daemon", "--config_path=/elsewhere.yaml")
    (root / "etc/policy-server/config.yaml").write_text("listen: 127.0.0.1:8080\n")
    with pytest.raises(ConfigError, match=r"bundles: .* names none"):
        server_cli.dispatch(["service", "install", "--user=daemon", f"--root={root}"])
    assert not (root / "etc/systemd").exists()


def test_whose_account(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "root")
    with pytest.raises(UsageError, match="user: whose account"):
        edge(root, "install")
    with pytest.raises(ConfigError, match="user: 'a b' is not the name of an account"):
        edge(root, "install", "--user=a b")
    with pytest.raises(ConfigError, match="user: there is no 'nobody-here' on this machine"):
        systemd._check_user("nobody-here", Path("/"))


@needs_systemctl
def test_only_groups_that_exist_there(root: Path) -> None:
    (root / "etc/group").write_text("root:x:0:\ndialout:x:20:pi\n")
    edge(root, "install", "--user=daemon")
    assert "SupplementaryGroups=dialout" in unit(root)


@pytest.mark.parametrize(("word", "said"), [("instal", "did you mean install"), ("x", "one of install, uninstall")])
def test_a_word_that_is_none(root: Path, word: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        edge(root, word)


def test_without_permission_it_says_who_may(root: Path) -> None:
    """As nobody, since root may write anywhere; in a folder outside pytest's, which are root's alone."""
    with tempfile.TemporaryDirectory() as folder:
        other = Path(shutil.copytree(root, f"{folder}/root"))
        (other / "etc/systemd/system").mkdir(parents=True)
        (other / "etc/systemd/system/edge-runtime.service").touch()
        (other / "etc/systemd/system/edge-runtime.service").chmod(0o444)
        (other / "etc/systemd/system").chmod(0o555)
        for path in (Path(folder), other):
            path.chmod(0o755)
        user = os.geteuid()
        os.seteuid(65534 if user == 0 else user)
        try:
            for word in ("install", "uninstall"):
                with pytest.raises(AccessError, match=rf"only root may change {other}/etc/.*\.service: sudo .* {word}"):
                    edge(other, word, "--user=daemon")
        finally:
            os.seteuid(user)
            (other / "etc/systemd/system").chmod(0o755)


def test_without_systemd(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(root))
    with pytest.raises(OutputError, match="services need systemd"):
        edge(root, "install", "--user=daemon")


def test_status_of_one_that_runs(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a systemctl that answers as systemd 252 does; there is none that runs in a test."""
    fake = tmp_path / "bin/systemctl"
    fake.parent.mkdir()
    fake.write_text(
        "#!/bin/sh\necho ActiveState=activating\necho SubState=auto-restart\necho StatusText=holding\n"
        "echo NRestarts=3\necho ExecMainStatus=69\necho UnitFileState=enabled\necho ActiveEnterTimestamp=\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(systemd, "_runs_here", lambda root: True)
    (root / "etc/systemd/system").mkdir(parents=True)
    (root / "etc/systemd/system/edge-runtime.service").touch()
    assert edge(root, "status") == systemd.NOT_RUNNING
    assert capsys.readouterr().out.splitlines() == [
        "edge-runtime.service: activating (auto-restart)",
        "  does       holding",
        "  at boot    enabled",
        "  restarts   3",
        "  last exit  69: The connection to the policy server failed in a way that may pass.",
        "  says       journalctl -u edge-runtime",
    ]


# What the server's unit leaves open.


def analysed(folder: Path, name: str) -> float:
    return float(systemd.exposure(folder / f"etc/systemd/system/{name}.service") or "nan")


@needs_analyze
def test_the_servers_unit_leaves_little_open(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["service", "install", "--user=daemon", f"--root={root}"]
    assert server_cli.dispatch(words) == 0
    assert analysed(root, "policy-server") <= 2.1
    assert f"score  {analysed(root, 'policy-server')} in systemd-analyze security" in capsys.readouterr().out
    assert "MemoryDenyWriteExecute=yes" in unit(root, "policy-server")


@needs_analyze
def test_an_accelerator_is_left_visible(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_config, "wants_accelerator", lambda wanted: wanted == "auto")
    assert server_cli.dispatch(["service", "install", "--user=daemon", f"--root={root}"]) == 0
    lines = unit(root, "policy-server")
    assert not [line for line in lines if line.startswith(("PrivateDevices", "DevicePolicy", "MemoryDenyWrite"))]
    assert analysed(root, "policy-server") <= 2.6


def test_what_the_server_writes_is_left_writable(root: Path) -> None:
    settings = root / "etc/policy-server/config.yaml"
    settings.write_text(
        "bundles: [act_so101_pick_place]\nlisten: unix:/srv/arm/policy.sock\nadmin_socket: /srv/ops/a\n"
    )
    assert server_cli.dispatch(["service", "install", "--user=daemon", f"--root={root}"]) == 0
    lines = unit(root, "policy-server")
    assert {"ReadWritePaths=-/srv/arm", "ReadWritePaths=-/srv/ops"} <= set(lines)


def test_the_unit_is_shown_and_nothing_written(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert edge(root, "install", "--user=daemon", "--print") == 0
    shown = capsys.readouterr().out
    assert not (root / "etc/systemd").exists()
    assert edge(root, "install", "--user=daemon") == 0
    assert shown.splitlines() == unit(root)
