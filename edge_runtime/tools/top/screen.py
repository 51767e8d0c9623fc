"""The screen of `top`: one line of state, three curves, and a table of the servos."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from edge_runtime.tools.top.history import History

_BLOCKS = " ▁▂▃▄▅▆▇█"
_HEIGHT = 3  # lines of a curve
_COLOURS = {"running": "green", "starting": "cyan", "draining": "yellow", "holding": "yellow", "fault": "red"}
_HOT, _WARM = 65, 55  # degrees Celsius


def draw(history: History, url: str) -> Group:
    now = history.newest
    rate = history.rates("loop_ticks_total")
    lateness_us = [seconds * 1e6 for seconds in history.means("lateness_seconds")]
    return Group(
        _headline(history, f"{rate[-1]:.1f}" if rate else "–", url),
        Curve("queue", history.values("queue_level"), "actions", f"asks at {now['threshold_rows']:.0f}"),
        Curve("round trip", [1e3 * each for each in history.values("round_trip_seconds")], "ms"),
        Curve("lateness", lateness_us, "µs", "mean of each look"),
        _counts(history),
        _servos(history),
    )


class Curve:
    """A series in blocks, as wide as there is room; the newest on the right, the scale from 0 to the largest."""

    def __init__(self, name: str, values: Sequence[float], unit: str, note: str = "") -> None:
        self._name = name
        self._values = values
        self._unit = unit
        self._note = note

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        newest = f"{self._values[-1]:.3g}" if self._values else "–"
        title = f"{self._name} {newest} {self._unit}" + (f" ({self._note})" if self._note else "")
        lines = curve(self._values, options.max_width - 4, _HEIGHT)
        most = f"at most {max(self._values):.3g} {self._unit}" if self._values else None
        yield Panel(Text("\n".join(lines), no_wrap=True), title=title, title_align="left", subtitle=most)


def curve(values: Sequence[float], width: int, height: int) -> list[str]:
    """`height` lines of at most `width` blocks, the upper first."""
    shown = list(values)[-width:]
    top = max(shown, default=0.0) or 1.0
    eighths = [round(max(value, 0.0) / top * height * 8) for value in shown]
    return [
        "".join(_BLOCKS[min(max(each - line * 8, 0), 8)] for each in eighths).rjust(width)
        for line in range(height - 1, -1, -1)
    ]


def _headline(history: History, rate_hz: str, url: str) -> Text:
    now = history.newest
    said = Text.assemble(
        (f" {now.state} ", f"bold reverse {_COLOURS.get(now.state, 'white')}"),
        f"  {rate_hz} of {now['control_hz']:g} Hz  ",
        (url, "dim"),
    )
    if history.trouble:
        said.append(f"  {history.trouble}", "red")
    return said


def _counts(history: History) -> Text:
    now = history.newest
    names = {
        "starved": "loop_starved_total",
        "late": "loop_late_total",
        "missed": "loop_missed_total",
        "chunks": "chunks_merged_total",
        "lost": "observations_lost_total",
        "failed": "observations_failures_total",
        "reconnects": "reconnects_total",
        "faults": "faults_total",
    }
    return Text("  ".join(f"{word} {now[name]:.0f}" for word, name in names.items()))


def _servos(history: History) -> Table:
    table = Table(expand=True, box=None)
    table.add_column("servo")
    for heading in ("misses", "°C", "load %", "V", "A"):
        table.add_column(heading, justify="right")
    table.add_column("reports")
    for joint, numbers in history.newest.joints.items():
        temperature = numbers.get("temperature")
        colour = "red" if (temperature or 0) >= _HOT else "yellow" if (temperature or 0) >= _WARM else ""
        misses = numbers.get("misses_total", 0.0)
        table.add_row(
            joint,
            Text(f"{misses:.0f}", "yellow" if misses else ""),
            Text("–" if temperature is None else f"{temperature:.0f}", colour),
            *(f"{numbers[name]:.{digits}f}" if name in numbers else "–" for name, digits in _DIGITS.items()),
            Text(history.newest.errors.get(joint, ""), "red"),
        )
    return table


_DIGITS = {"load": 0, "voltage": 1, "current": 2}
