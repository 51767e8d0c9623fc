"""Runs a program under what a unit of systemd sets, by hand: `python -m tests.security.sandbox UNIT PROGRAM …` as root.

Its system calls (SystemCallFilter), memory (MemoryDenyWriteExecute), files (ProtectSystem=strict, its own /tmp), no
capabilities, no new privileges. Named groups of system calls are those of the systemd that is installed.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
_NO_NEW_PRIVS, _SECCOMP, _MDWE, _CAPBSET_DROP = 38, 22, 65, 24  # of prctl.h
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # of BPF
_ALLOW, _EPERM = 0x7FFF0000, 0x00050001


def filtered(unit: str) -> set[str]:
    """The names of the system calls that `unit` allows: the first line lists, `~` takes away, another one adds."""
    allowed: set[str] = set()
    for line in re.findall(r"^SystemCallFilter=(.*)$", unit, re.MULTILINE):
        names = {call for name in line.lstrip("~").split() for call in members(name)}
        allowed = allowed - names if line.startswith("~") else allowed | names
    return allowed


def members(name: str) -> set[str]:
    if not name.startswith("@"):
        return {name}
    said = subprocess.run(
        ["systemd-analyze", "syscall-filter", name], capture_output=True, text=True, check=True
    ).stdout
    words = [line.strip() for line in said.splitlines()[1:] if line.strip() and not line.strip().startswith("#")]
    return {call for word in words for call in members(word)}


def program(names: set[str]) -> bytes:
    """A filter for x86-64 that lets through what is named, and says EPERM to all else."""
    numbers = dict(re.findall(r"__NR_(\w+) (\d+)", HEADER.read_text()))
    steps = [struct.pack("HBBI", _LOAD, 0, 0, 0)]
    for number in sorted(int(numbers[name]) for name in names | {"execve"} if name in numbers):
        steps += [struct.pack("HBBI", _EQUAL, 0, 1, number), struct.pack("HBBI", _RETURN, 0, 0, _ALLOW)]
    return b"".join([*steps, struct.pack("HBBI", _RETURN, 0, 0, _EPERM)])


def main(unit: str, command: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def prctl(*words: object) -> None:
        if libc.prctl(*words, *[0] * (5 - len(words))) != 0:
            raise OSError(ctypes.get_errno(), f"prctl {words[0]}")

    code = program(filtered(unit))
    if libc.unshare(0x00020000) != 0:  # CLONE_NEWNS
        raise OSError(ctypes.get_errno(), "unshare")
    for words in ("--make-rprivate /", "-o remount,bind,ro /", "-t tmpfs tmpfs /tmp"):
        subprocess.run(["mount", *words.split()], check=True)
    for capability in range(41):
        prctl(_CAPBSET_DROP, capability)
    prctl(_NO_NEW_PRIVS, 1)
    if "\nMemoryDenyWriteExecute=yes" in unit:
        prctl(_MDWE, 1)
    buffer = ctypes.create_string_buffer(code)
    filter = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer)))
    prctl(_SECCOMP, 2, ctypes.c_void_p(ctypes.addressof(filter)))
    os.execv(command[0], command)


if __name__ == "__main__":
    main(Path(sys.argv[1]).read_text(), sys.argv[2:])
