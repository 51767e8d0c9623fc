"""Is this computer fit for a loop: real time, and room to write?"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator

from edge_runtime._realtime import ActionRing, ActuatorLoop, PythonPort
from edge_runtime.config import StartConfig
from edge_runtime.errors import AccessError, ConfigError, OutputError
from edge_runtime.reporting.fault_record import default_folder
from edge_runtime.tools.doctor.finding import Finding
from edge_runtime.tools.doctor.packages import MACHINE

LITTLE_DISK, NO_DISK = 1 << 30, 64 << 20
JITTER_S = 1.0
JITTER_HZ = 200.0
LATE_PART = 0.1  # of a period, as the loop counts it


def disk(config: StartConfig) -> Finding:
    """Room where a run writes."""
    folder = (config.fault_folder or default_folder()).absolute()
    while not folder.exists():
        folder = folder.parent
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return MACHINE.failed("disk", OutputError(f"{folder}: {error.strerror}"), f"ls -ld {folder}")
    said = f"{free / 1e9:.1f} GB free at {folder}"
    if free < NO_DISK:
        return MACHINE.failed("disk", OutputError(said), f"make room: du -xh {folder} | sort -h | tail")
    if free < LITTLE_DISK:
        return MACHINE.warning("disk", said, f"make room: du -xh {folder} | sort -h | tail")
    return MACHINE.ok("disk", said)


def realtime(config: StartConfig) -> Iterator[Finding]:
    """What the loop's thread may have, and how late it wakes up over a second at 200 Hz."""
    loop = ActuatorLoop(
        ActionRing(2, 1),
        PythonPort(_Still(), 1),
        fps=JITTER_HZ,
        realtime=config.realtime,
        priority=config.priority,
    )
    loop.prime([0.0])
    affinity = os.sched_getaffinity(0)
    try:
        if config.cpu_affinity:
            os.sched_setaffinity(0, config.cpu_affinity)
        threading.Timer(JITTER_S, loop.stop).start()
        loop.run()
    except AccessError as error:
        yield MACHINE.failed("real time", error, _GRANT)
        return
    except OSError as error:
        wrong = ConfigError(f"cpu_affinity: {config.cpu_affinity}: {error.strerror}")
        yield MACHINE.failed("real time", wrong, f"the processors here are {sorted(affinity)}")
        return
    finally:
        os.sched_setaffinity(0, affinity)
    outcome = loop.realtime_outcome
    if config.realtime == "off":
        yield MACHINE.skipped("real time", "not asked for (realtime: off)")
    elif outcome.startswith("SCHED_FIFO"):
        yield MACHINE.ok("real time", outcome)
    else:
        yield MACHINE.warning("real time", outcome, _GRANT)
    late = loop.lateness().summary()
    times_ms = f"{late.p50 * 1e3:.2f} ms late, p99 {late.p99 * 1e3:.2f} ms, at most {late.max * 1e3:.2f} ms"
    said = f"a thread wakes {times_ms} ({late.n} times in {JITTER_S:g} s)"
    if late.p99 > LATE_PART / (config.fps * config.substeps):
        yield MACHINE.warning(
            "jitter", said, "end what else runs here, or keep a processor for the loop: isolcpus, cpu_affinity"
        )
    else:
        yield MACHINE.ok("jitter", said)


_GRANT = (
    'the service has it (edge-runtime service install). For a shell: echo "$USER - rtprio 99" | sudo tee'
    " /etc/security/limits.d/rtprio.conf, then log in again"
)


class _Still:
    """A robot that stands."""

    def read(self) -> list[float]:
        return [0.0]

    def write(self, goals: object) -> None:
        pass
