"""Log lines that nobody waits for: all arrive where somebody reads, and where nobody does nobody is kept."""

from __future__ import annotations

import logging
import os
import threading

import pytest

from edge_runtime.program import logs
from edge_runtime.program.logs import KEPT, BackgroundStream

LINES = [f"{number:099d}\n" for number in range(KEPT)]


@pytest.mark.parametrize("blocking", [True, False])
def test_a_slow_reader_gets_every_line(blocking: bool) -> None:
    """Also through a descriptor that its owner, whoever shares it, made non-blocking."""
    readable, writable = os.pipe()
    os.set_blocking(writable, blocking)
    stream = BackgroundStream(writable)
    for line in LINES:
        stream.write(line)
    with open(readable, "rb", buffering=0) as reader:
        read = b""
        while len(read) < sum(map(len, LINES)):
            read += reader.read(1000)
    stream.close()
    os.close(writable)
    assert read.decode() == "".join(LINES)


def test_who_writes_is_never_kept() -> None:
    readable, writable = os.pipe()
    stream = BackgroundStream(writable)
    done = threading.Thread(target=lambda: [stream.write("x" * 4096) for _ in range(3 * KEPT)], daemon=True)
    done.start()
    done.join(60)
    assert not done.is_alive()
    os.close(readable)  # a terminal that is closed: the rest is dropped
    stream.close()
    assert not stream._thread.is_alive()
    os.close(writable)


def test_lines_that_a_stranger_can_cause_are_limited_by_kind_and_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs.time, "monotonic", lambda: now_s)
    log = logging.getLogger("test.sparing")
    sparing = logs.Sparing()
    log.addFilter(sparing)
    now_s = 100.0
    for number in range(1000):
        log.warning("stranger %d came", number)
    log.warning("another %s", "kind")
    assert len(caplog.records) == sparing.BURST + 1
    now_s = 102.0
    log.warning("stranger %d came", 1000)
    assert caplog.records[-1].getMessage() == "stranger 1000 came (and 970 more like it, left out)"
    log.removeFilter(sparing)
