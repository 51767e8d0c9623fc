"""`edge-runtime replay-fault FILE`: the last seconds before a fault, as text for people and as a picture."""

from __future__ import annotations

import importlib.util
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from edge_runtime.errors import OutputError
from edge_runtime.program import flags, output
from edge_runtime.reporting.fault_record import FaultRecord, JointReport, Tick

LAST_TICKS = 12
WIDTH = 100
SHORT = 5  # ticks in a run


@dataclass
class ReplayConfig:
    """Show what the arm did in the seconds before a fault."""

    file: Path  # as the message of the fault names it
    plot: bool = True  # goals and positions as FILE.png, where matplotlib is installed
    debug: bool = False  # tracebacks


def main(argv: list[str]) -> int:
    config = flags.parse(ReplayConfig, argv, prog="edge-runtime replay-fault", positional="file")
    record = FaultRecord.load(config.file)
    output.say(text(record))
    if config.plot and record.ticks and importlib.util.find_spec("matplotlib"):
        output.say(f"\ngoals and positions: {plot(record, config.file.with_suffix('.png'))}")
    return 0


def text(record: FaultRecord) -> str:
    """The record on a page, at most 100 columns."""
    lines = [
        f"{record.time}: {record.error}",
        "states: " + " -> ".join(f"{state} ({at_s:.1f} s)" for at_s, state in record.states[-6:]),
        "",
        *_joints(record),
    ]
    if record.ticks:
        lines += ["", f"{len(record.ticks)} ticks at {record.control_hz:g} Hz, seconds before the last:"]
        goes_on = textwrap.TextWrapper(WIDTH, initial_indent="  ", subsequent_indent=" " * 34)
        lines += map(goes_on.fill, _spans(record))
        lines += ["", *_last(record)]
    return "\n".join(lines)


def _joints(record: FaultRecord) -> Iterator[str]:
    last, reports = record.ticks[-1] if record.ticks else None, record.reports()
    yield f"{'joint':<15}{'goal':>8}{'present':>9}{'V':>7}{'°C':>5}{'load':>7}{'A':>7}{'misses':>8}  errors"
    for index, joint in enumerate(record.joints):
        seen = reports.get(joint, JointReport())
        figures = [(getattr(seen, key), width, kind) for key, width, kind in _FIGURES]
        yield (
            f"{joint:<15}"
            + "".join(f"{getattr(last, key)[index]:>{width}.1f}" if last else " " * width for key, width in _POSE)
            + "".join(" " * width if each is None else f"{each:>{width}{kind}}" for each, width, kind in figures)
            + f"{seen.misses:>8}  {seen.errors}"
        ).rstrip()


_POSE = (("goal", 8), ("positions", 9))
_FIGURES = (("voltage", 7, ".1f"), ("temperature", 5, ".0f"), ("load", 7, ".0f"), ("current", 7, ".2f"))


def _spans(record: FaultRecord) -> Iterator[str]:
    """Runs of ticks that went alike; where that changes every few ticks, they come together."""
    spans: list[list[Tick]] = []
    before = SHORT
    for _, run in groupby(record.ticks, lambda tick: (tick.outcome, tick.answered)):
        ticks = list(run)
        if max(before, len(ticks)) < SHORT:
            spans[-1] += ticks
        else:
            spans.append(ticks)
        before = len(ticks)
    end_ns = record.ticks[-1].time_ns
    for ticks in spans:
        first, last = ((tick.time_ns - end_ns) / 1e9 for tick in (ticks[0], ticks[-1]))
        count = f"{len(ticks):5} tick{' ' if len(ticks) == 1 else 's'}"
        yield f"{first:8.3f} .. {last:7.3f}  {count}  {_how(ticks, len(record.joints))}"


def _how(ticks: list[Tick], joints: int) -> str:
    outcomes = Counter(tick.outcome for tick in ticks)
    said = ", ".join(outcome if len(outcomes) == 1 else f"{outcome} {count}" for outcome, count in outcomes.items())
    said += f", timesteps {ticks[0].timestep}..{ticks[-1].timestep}"
    silent = [joints - tick.answered for tick in ticks]
    up_to = "up to " if min(silent) < max(silent) else ""
    return said + (f", {up_to}{max(silent)} of {joints} joints silent" if max(silent) else "")


def _last(record: FaultRecord) -> Iterator[str]:
    yield f"{'seconds':>9}{'timestep':>10}  {'outcome':<9}{'answers':>8}{'late':>10}{'read':>10}{'write':>10}{'age':>9}"
    end_ns = record.ticks[-1].time_ns
    for tick in record.ticks[-LAST_TICKS:]:
        yield (
            f"{(tick.time_ns - end_ns) / 1e9:9.3f}{tick.timestep:>10}  {tick.outcome:<9}{tick.answered:>8}"
            + "".join(f"{getattr(tick, key) / 1e6:>7.2f} ms" for key in ("late_ns", "read_ns", "write_ns"))
            + f"{tick.action_age_ns / 1e9:>7.2f} s"
        )


def plot(record: FaultRecord, path: Path) -> Path:
    """Goals and positions of every joint over time, into `path`. Raises OutputError."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # an extra's
    from matplotlib.figure import Figure

    output.check(path, "plot")
    figure = Figure(figsize=(10, 1.6 * len(record.joints)), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    seconds = [(tick.time_ns - record.ticks[-1].time_ns) / 1e9 for tick in record.ticks]
    for index, axes in enumerate(figure.subplots(len(record.joints), 1, sharex=True, squeeze=False)[:, 0]):
        axes.plot(seconds, [tick.goal[index] for tick in record.ticks], label="goal", linewidth=1)
        axes.plot(seconds, [tick.positions[index] for tick in record.ticks], label="position", linewidth=1)
        axes.set_ylabel(f"{record.joints[index]}\n({record.units[index]})", fontsize=8, parse_math=False)
    figure.axes[0].legend(loc="upper left", fontsize=8)
    figure.axes[-1].set_xlabel("seconds before the last tick")
    figure.suptitle(record.error, fontsize=9, parse_math=False)
    try:
        canvas.print_png(path)
    except OSError as error:
        raise OutputError(f"plot: cannot write {path}: {error.strerror}") from error
    return path
