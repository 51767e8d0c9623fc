"""Is the serial port the right one, and ours alone?"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edge_runtime.errors import AccessError, BusError, DeviceError
from edge_runtime.motors.port import BY_ID, Port, adapters
from edge_runtime.tools.doctor.finding import Finding, Group

ARM = Group("arm")

_SYS = Path("/sys")
_MOVES = re.compile(r"tty(ACM|USB|CH\w+USB)\d+")  # numbered as they are plugged in
_SERVICE = re.compile(r"/([\w@.-]+)\.service")


@dataclass(frozen=True)
class Owner:
    """A process that has the port open; `service` is the systemd unit that it belongs to, if any."""

    pid: int
    name: str
    service: str

    def __str__(self) -> str:
        return f"{self.name} (process {self.pid})"

    @property
    def mend(self) -> str:
        if self.name == "ModemManager":
            return "sudo systemctl disable --now ModemManager: it takes serial ports for modems"
        if self.name == "brltty":
            return "sudo apt remove brltty: it takes CH340 adapters for Braille displays"
        return f"sudo systemctl stop {self.service}" if self.service else f"end it: kill {self.pid}"


def examine(path: str) -> Iterator[Finding]:
    """Open it as `start` would, and close it; the last finding is failed if that cannot be."""
    port = Port(path)
    try:
        port.open()
    except (BusError, AccessError) as error:
        yield ARM.failed("port", error, _how_to_open(path, error))
        return
    port.close()
    others = owners(path)
    if others:
        reason = DeviceError(f"{path} is open in {', '.join(map(str, others))} too; a bus has one owner")
        yield ARM.failed("port", reason, others[0].mend)
        return
    stable = stable_names(path)
    if _MOVES.fullmatch(Path(path).name):
        mend = f"--robot.port={stable[0]}" if stable else "a udev rule that gives it a name of its own"
        yield ARM.warning("port", f"{path} may be another adapter after a restart", mend)
    else:
        yield ARM.ok("port", path + (f" ({Path(path).resolve()})" if Path(path).is_symlink() else ""))
    wait_ms = latency_timer(path)
    if wait_ms > 1:
        yield ARM.warning(
            "latency timer",
            f"the adapter keeps bytes for {wait_ms} ms",
            shorten_latency(path),
        )


def _how_to_open(path: str, error: DeviceError | AccessError) -> str:
    if isinstance(error, AccessError):
        return "sudo usermod -aG dialout $USER, then log in again"
    if found := owners(path):
        return found[0].mend
    if Path(path).exists():
        return "give --robot.port the adapter's name: ls /dev/serial/by-id"
    near = adapters()
    if near:
        return f"--robot.port={near[0]}"
    taken = ", or sudo apt remove brltty, which takes CH340 adapters away" if runs("brltty") else ""
    return f"plug the adapter in, and look: ls /dev/serial/by-id{taken}"


def runs(name: str, proc: Path = Path("/proc")) -> bool:
    """Whether a process of that name is there."""
    for file in proc.glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):  # it has ended
            if file.read_text().strip() == name:
                return True
    return False


def owners(path: str, proc: Path = Path("/proc")) -> list[Owner]:
    """The other processes that have it open, of those that we may look at."""
    device = os.path.realpath(path)
    found = []
    for folder in proc.glob("[0-9]*"):
        if folder.name == str(os.getpid()):
            continue
        try:
            files = {os.readlink(file) for file in (folder / "fd").iterdir()}
            if device not in files or (device.startswith("/dev/pts/") and "/dev/ptmx" in files):
                continue  # the program that made a pty holds both ends of it
            name = (folder / "comm").read_text().strip()
            unit = _SERVICE.search((folder / "cgroup").read_text())
        except OSError:  # not ours to look at, or it has ended
            continue
        found.append(Owner(int(folder.name), name, unit.group(1) if unit else ""))
    return sorted(found, key=lambda owner: owner.pid)


def stable_names(path: str, folder: Path = BY_ID) -> list[str]:
    """The names under which it will be found after a restart."""
    return [str(link) for link in sorted(folder.glob("*")) if os.path.realpath(link) == os.path.realpath(path)]


def latency_timer(path: str) -> int:
    """For how many ms the adapter keeps bytes; 0 where it does not say."""
    try:
        return int(_latency_file(path).read_text())
    except (OSError, ValueError):
        return 0


def shorten_latency(path: str) -> str:
    """How to make the adapter hand over each byte at once; USB adapters of FTDI keep them for 16 ms."""
    file = _latency_file(path)
    if file.exists():
        return f"echo 1 | sudo tee {file}"
    return f"its latency_timer: sudo setserial {path} low_latency, or an adapter without one"


def _latency_file(path: str) -> Path:
    return _SYS / "class/tty" / Path(os.path.realpath(path)).name / "device/latency_timer"
