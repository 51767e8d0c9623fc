"""The wall clock is stepped by a minute, either way, under a running arm: nothing but the log's times may notice."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from tests.faults.bench import Bench

SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static volatile long *offset;

__attribute__((constructor)) static void begin(void) {
    int fd = open(getenv("CLOCK_OFFSET"), O_RDONLY);
    offset = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (clock == CLOCK_REALTIME && offset != MAP_FAILED)
        now->tv_sec += *offset;
    return result;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler for a clock of its own")
def test_a_stepped_wall_clock_moves_nothing(rig: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, shim, page = tmp_path / "clock.c", tmp_path / "clock.so", tmp_path / "offset"
    source.write_text(SHIM)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(shim), str(source)], check=True)
    page.write_bytes(bytes(8))
    with monkeypatch.context() as environment:
        environment.setenv("LD_PRELOAD", str(shim))
        environment.setenv("CLOCK_OFFSET", str(page))
        edge = rig.start()
    with edge:
        edge.wait_for("-> running")
        lines = len(edge.lines)
        for offset in (60, -60):
            with page.open("r+b") as file:
                file.write(struct.pack("l", offset))
            rig.wait_for_goals(25)  # more than a chunk: there were answers in between
        said = [line for line in edge.lines[lines:] if "so_watch" not in line]  # virtual servos on a busy machine
        assert said == []
        assert edge.end() == 0, edge.text
    minutes = {line[:16] for line in edge.lines if "INFO" in line}
    assert len(minutes) > 1, "the clock was never stepped"
