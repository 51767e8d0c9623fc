"""`… service install|uninstall|status`: a program of ours as a systemd service, from the template in its package."""

from __future__ import annotations

import getpass
import grp
import os
import pwd
import re
import shutil
import string
import subprocess
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from edge_runtime.errors import AccessError, ConfigError, EdgeRuntimeError, OutputError, UsageError
from edge_runtime.program import extras, flags, output
from edge_runtime.program.schema import hint

NOT_RUNNING, NO_UNIT = 3, 4  # exit codes of `status`, as of systemctl's

_NO_DEVICES = "PrivateDevices=yes\nDevicePolicy=closed\nMemoryDenyWriteExecute=yes"
_ACCELERATED = (
    "# Without PrivateDevices, DevicePolicy and MemoryDenyWriteExecute: an accelerator's engines compile code."
)
_STABLE = ("/dev/serial/by-id/", "/dev/serial/by-path/")


@dataclass
class ServiceConfig:
    """Run at boot, and again after a failure: `install`, `uninstall`, or show the `status`."""

    action: str  # install, uninstall or status
    config_path: Path | None = None  # its settings; by default /etc/PROGRAM/config.yaml
    user: str = ""  # whose account it runs under; by default who calls, through sudo or not
    root: Path = Path("/")  # the files of another system, for an image
    print: bool = False  # install: show the unit, and write nothing
    debug: bool = False  # tracebacks


@dataclass(frozen=True)
class Needs:
    """What a configuration asks of the unit.

    Further `flags` of `start`, the serial `port` it cannot do without, the folders that it `writes`, and whether it
    needs an `accelerator`, which a service without devices would not see.
    """

    flags: tuple[str, ...] = ()
    port: str = ""
    writes: tuple[Path, ...] = ()
    accelerator: bool = False


@dataclass(frozen=True)
class Program:
    """A command with a word `start`; `package` has its template; `read` checks a configuration file, or raises."""

    name: str
    package: str
    groups: tuple[str, ...]
    read: Callable[[Path], Needs]

    @property
    def unit(self) -> str:
        return f"{self.name}.service"


def main(argv: list[str], program: Program) -> int:
    """The word `service` of `program`."""
    config = flags.parse(ServiceConfig, argv, prog=f"{program.name} service", positional="action")
    if not config.root.is_dir():
        raise ConfigError(f"root: {config.root} is not a folder")
    actions = {"install": install, "uninstall": uninstall, "status": status}
    if config.action not in actions:
        raise UsageError(f"action: no {config.action!r}: {hint(config.action, actions)}")
    return actions[config.action](program, config)


def install(program: Program, config: ServiceConfig) -> int:
    """Write the unit and have it started at boot. Raises ConfigError for a configuration that could not start."""
    settings = config.config_path or Path("/etc", program.name, "config.yaml")
    needs = program.read(_inside(config.root, settings))
    command = [str(_command(program.name)), "start", *needs.flags, f"--config_path={settings.absolute()}"]
    user, groups = config.user or _caller(), _groups(program.groups, config.root)
    _check_user(user, config.root)
    text = render(program, command, user, groups, needs)
    if config.print:
        output.say(text.rstrip())
        return 0
    file = _file(program, config.root)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except PermissionError as error:
        raise _for_root_only(program, "install", file) from error
    except OSError as error:
        raise OutputError(f"service: cannot write {file}: {error.strerror}") from error
    _reload(config.root)
    _systemctl(config.root, "enable", program.unit)
    print(f"{file}")
    print(f"  runs   {' '.join(command)}")
    print(f"  as     {user} ({', '.join(groups)})")
    print(f"  from   the next boot on; now: sudo systemctl restart {program.name}")
    print(f"  says   journalctl -fu {program.name}")
    score = exposure(file)
    if score:
        print(f"  score  {score} in systemd-analyze security (0 = exposed to nothing, 10 = to everything)")
    return 0


def uninstall(program: Program, config: ServiceConfig) -> int:
    """Stop it, and remove what `install` wrote; the configuration stays. Twice is harmless."""
    file = _file(program, config.root)
    if not file.exists():
        print(f"{program.unit} is not installed")
        return 0
    if not os.access(file.parent, os.W_OK, effective_ids=True):
        raise _for_root_only(program, "uninstall", file)
    if _runs_here(config.root):
        _systemctl(config.root, "stop", program.unit)
    _systemctl(config.root, "disable", program.unit)
    file.unlink()
    _reload(config.root)
    print(f"{program.unit} is stopped and removed; its configuration is left")
    return 0


def status(program: Program, config: ServiceConfig) -> int:
    """What it does now: 0 when it runs, 3 when it does not, 4 when it is not installed."""
    file = _file(program, config.root)
    if not file.exists():
        print(f"{program.unit} is not installed: sudo {_command(program.name)} service install")
        return NO_UNIT
    if not _runs_here(config.root):
        print(f"{file} is there, but systemd does not run here")
        return NOT_RUNNING
    names = "ActiveState,SubState,StatusText,ActiveEnterTimestamp,NRestarts,ExecMainStatus,UnitFileState"
    shown = _systemctl(config.root, "show", f"--property={names}", program.unit)
    found = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    code = int(found.get("ExecMainStatus") or 0)
    print(f"{program.unit}: {found['ActiveState']} ({found['SubState']})")
    for name, value in {
        "does": found.get("StatusText"),
        "since": found.get("ActiveEnterTimestamp"),
        "at boot": found.get("UnitFileState"),
        "restarts": found.get("NRestarts"),
        "last exit": code and f"{code}: {_meaning(code)}",
        "says": f"journalctl -u {program.name}",
    }.items():
        if value and value != "0":
            print(f"  {name:<10} {value}")
    return 0 if found["ActiveState"] == "active" else NOT_RUNNING


def render(program: Program, command: Sequence[str], user: str, groups: Sequence[str], needs: Needs) -> str:
    """The unit file. With a port of stable name, it starts only with that device there, and when it is plugged in.

    Not BindsTo: that would end the service for a cable that is out for a second, and it opens the port again itself.
    """
    device = device_unit(needs.port) if needs.port.startswith(_STABLE) else ""
    template = resources.files(program.package).joinpath(program.unit).read_text(encoding="utf-8")
    return string.Template(template).substitute(
        command=" ".join(map(quote, command)),
        user=user,
        groups=" ".join(groups),
        device=f"Requires={device}\nAfter={device}\n" if device else "",
        wanted_by=f" {device}" if device else "",
        devices=_ACCELERATED if needs.accelerator else _NO_DEVICES,
        writes="".join(f"\nReadWritePaths=-{quote(str(path))}" for path in needs.writes),
    )


def exposure(file: Path) -> str:
    """What systemd-analyze thinks of the unit in `file`; empty where it is not installed, or too old to."""
    try:
        words = ("systemd-analyze", "security", "--offline=true", "--no-pager", str(file))
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    found = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    return found[1] if found else ""


def quote(word: str) -> str:
    """A word of a command line in a unit file, see systemd.service(5)."""
    word = word.replace("%", "%%").replace("$", "$$").replace("\\", "\\\\")
    return '"' + word.replace('"', '\\"') + '"' if set(word) & set(" \t'\";") else word


def device_unit(path: str) -> str:
    """The unit that systemd has for a device, as `systemd-escape --path --suffix=device` names it."""
    plain = string.ascii_letters + string.digits + ":_."
    escaped = "".join(
        "-" if letter == "/" else letter if letter in plain else "".join(f"\\x{byte:02x}" for byte in letter.encode())
        for letter in path.strip("/")
    )
    return f"{escaped}.device"


def _inside(root: Path, path: Path) -> Path:
    return root / path.absolute().relative_to("/")


def _file(program: Program, root: Path) -> Path:
    return root / "etc/systemd/system" / program.unit


def _command(name: str) -> Path:
    """The installed command, as this interpreter's installer has put it."""
    path = Path(sysconfig.get_path("scripts"), name)
    found = str(path) if path.exists() else shutil.which(name)
    if found is None:
        raise ConfigError(f"service: no command {name} in {path.parent} nor on the PATH: {extras.install()}")
    return Path(found).absolute()


def _caller() -> str:
    """The user at the keyboard. Root is not meant by accident: it has to be named."""
    name = os.environ.get("SUDO_USER") or getpass.getuser()
    if name == "root":
        raise UsageError("user: whose account is it to run under? --user=NAME")
    return name


def _check_user(name: str, root: Path) -> None:
    if root == Path("/"):
        try:
            pwd.getpwnam(name)
        except KeyError as error:
            raise ConfigError(f"user: there is no {name!r} on this machine") from error
    elif not re.fullmatch(r"[A-Za-z_][\w-]*\$?", name, re.ASCII):
        raise ConfigError(f"user: {name!r} is not the name of an account")


def _groups(wanted: Sequence[str], root: Path) -> list[str]:
    """Those that exist there: systemd starts nothing with a group that does not."""
    file = root / "etc/group"
    if root == Path("/") or not file.exists():
        known = {group.gr_name for group in grp.getgrall()}
    else:
        known = {line.partition(":")[0] for line in file.read_text(encoding="utf-8").splitlines()}
    return [name for name in wanted if name in known]


def _runs_here(root: Path) -> bool:
    return root == Path("/") and Path("/run/systemd/system").is_dir()


def _reload(root: Path) -> None:
    if _runs_here(root):
        _systemctl(root, "daemon-reload")


def _systemctl(root: Path, *words: str) -> str:
    """What `systemctl` says. Raises OutputError with its own reason."""
    command = ["systemctl", *([] if _runs_here(root) else [f"--root={root.absolute()}"]), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise OutputError("service: there is no systemctl here: services need systemd") from error
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"ended with exit code {done.returncode}"]
        raise OutputError(f"service: {' '.join(command)}: {said[-1]}")
    return done.stdout


def _meaning(code: int) -> str:
    """The first sentence of the error that ends with this exit code."""
    for kind in EdgeRuntimeError.__subclasses__():
        if kind.exit_code == code:
            return (kind.__doc__ or "").strip().splitlines()[0]
    return "see the journal"


def _for_root_only(program: Program, word: str, file: Path) -> AccessError:
    return AccessError(f"service: only root may change {file}: sudo {_command(program.name)} service {word}")
