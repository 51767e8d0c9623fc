"""Two machines and the cable between them: network namespaces, where links go down and packets are lost for good."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def token_bucket(megabits: int) -> tuple[str, ...]:
    return ("tbf", "rate", f"{megabits}mbit", "burst", f"{4 * megabits}kb", "latency", "400ms")


ONE_MEGABIT = token_bucket(1)

_CLONE_NEWNET = 0x40000000
_NEEDED = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}  # the second to make namespaces, and to enter them
_libc = ctypes.CDLL(None, use_errno=True)


def missing_capabilities() -> list[str]:
    """What this process lacks of the right to lay a cable."""
    status = Path("/proc/self/status").read_text()
    effective = int(status.partition("CapEff:")[2].split()[0], 16)
    return [name for name, bit in _NEEDED.items() if not effective >> bit & 1]


class Machine:
    """A network of its own, with a loopback and the end `cable0`; it has no name, and goes with its last user."""

    def __init__(self, address: str) -> None:
        self.address = address
        with _elsewhere():
            _check(_libc.unshare(_CLONE_NEWNET))
            self._namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY)

    def close(self) -> None:
        os.close(self._namespace)

    @property
    def path(self) -> str:
        """What `ip` calls it."""
        return f"/proc/{os.getpid()}/fd/{self._namespace}"

    @contextmanager
    def entered(self) -> Iterator[None]:
        """The calling thread is in there, and stays what it begins meanwhile: sockets, threads, processes."""
        with _elsewhere():
            _check(_libc.setns(self._namespace, _CLONE_NEWNET))
            yield

    @contextmanager
    def hosting(self, make: Callable[[], AbstractContextManager[T]]) -> Iterator[T]:
        """What `make` makes lives in there."""
        with ExitStack() as stack:
            with self.entered():
                made = stack.enter_context(make())
            yield made

    def run(self, *command: str) -> str:
        """Have a command run in there; its output."""
        with self.entered():
            done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def can(self, *command: str) -> bool:
        """Whether a command is there and succeeds."""
        try:
            with self.entered():
                return subprocess.run(command, capture_output=True).returncode == 0
        except FileNotFoundError:
            return False


@dataclass(frozen=True)
class Cable:
    """A cable between `robot` and `server`, whole until something is done to it."""

    robot: Machine
    server: Machine

    @property
    def ends(self) -> tuple[Machine, Machine]:
        return self.robot, self.server

    @contextmanager
    def out(self) -> Iterator[None]:
        """Pulled at the robot's end."""
        self.robot.run("ip", "link", "set", "cable0", "down")
        try:
            yield
        finally:
            self.robot.run("ip", "link", "set", "cable0", "up")

    @contextmanager
    def black_hole(self) -> Iterator[None]:
        """What the robot sends arrives, and nothing comes back: no reset, no error."""
        self.server.run("ip", "route", "add", "blackhole", f"{self.robot.address}/32")
        try:
            yield
        finally:
            self.server.run("ip", "route", "del", "blackhole", f"{self.robot.address}/32")

    def one_megabit(self) -> AbstractContextManager[None]:
        return self.slow(1)

    @contextmanager
    def slow(self, megabits: int) -> Iterator[None]:
        """Each way, by the kernel's token bucket; what waits in it when that goes is lost."""
        for end in self.ends:
            end.run("tc", "qdisc", "add", "dev", "cable0", "root", *token_bucket(megabits))
        try:
            yield
        finally:
            for end in self.ends:
                end.run("tc", "qdisc", "del", "dev", "cable0", "root")

    def held_back(self) -> int:
        """How many packets of the robot have had to wait for the token bucket so far."""
        (discipline,) = json.loads(self.robot.run("tc", "-s", "-j", "qdisc", "show", "dev", "cable0"))
        return int(discipline["overlimits"])

    @contextmanager
    def loss(self, percent: int) -> Iterator[None]:
        """Of the packets that come in, each way, drawn by the kernel's dice."""
        rule = f"""table ip lossy {{
            chain input {{
                type filter hook input priority 0
                iifname cable0 numgen random mod 100 < {percent} counter drop
            }}
        }}"""
        for end in self.ends:
            end.run("nft", rule)
        try:
            yield
        finally:
            for end in self.ends:
                end.run("nft", "delete table ip lossy")

    def lost(self) -> int:
        """How many packets have not come through so far."""
        return sum(
            expression["counter"]["packets"]
            for end in self.ends
            for entry in json.loads(end.run("nft", "-j", "list table ip lossy"))["nftables"]
            for expression in entry.get("rule", {}).get("expr", [])
            if "counter" in expression
        )


@contextmanager
def laid() -> Iterator[Cable]:
    """A cable between two new machines."""
    with closing(Machine("192.0.2.1")) as robot, closing(Machine("192.0.2.2")) as server:
        far_end = ("peer", "name", "cable0", "netns", server.path)
        robot.run("ip", "link", "add", "cable0", "type", "veth", *far_end)
        for end in (robot, server):
            end.run("ip", "link", "set", "lo", "up")
            end.run("ip", "address", "add", f"{end.address}/24", "dev", "cable0")
            end.run("ip", "link", "set", "cable0", "up")
        yield Cable(robot, server)


@contextmanager
def _elsewhere() -> Iterator[None]:
    """Whatever network the calling thread goes to, it comes back."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        yield
    finally:
        _check(_libc.setns(home, _CLONE_NEWNET))
        os.close(home)


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
