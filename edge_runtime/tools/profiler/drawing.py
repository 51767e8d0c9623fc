"""Plots as inline SVG: stacked bars, stacked columns, histograms and steps. Colours are the page's style's."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 900, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 10, 36
_TICKS = 5


@dataclass(frozen=True)
class Axis:
    """Maps `low`..`high` to pixels; `label` names it with its unit."""

    low: float
    high: float
    start_px: float
    end_px: float
    label: str

    def __call__(self, value: float) -> float:
        return self.start_px + (value - self.low) / (self.high - self.low) * (self.end_px - self.start_px)

    @property
    def ticks(self) -> list[float]:
        """Round numbers, about `_TICKS` of them."""
        rough = (self.high - self.low) / _TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
        first = math.ceil(self.low / step - 1e-9)
        return [index * step for index in range(first, math.floor(self.high / step + 1e-9) + 1)]


def stacked_bars(rows: Mapping[str, Mapping[str, float]], unit: str) -> str:
    """A horizontal bar for each row, of its parts one after another; a part's class is `part-NAME`."""
    height, gap = 34, 14
    bottom = _TOP + len(rows) * (height + gap)
    x = _across(0, max(sum(parts.values()) for parts in rows.values()) or 1, unit, left=110)
    drawn = []
    for number, (name, parts) in enumerate(rows.items()):
        top, at = _TOP + number * (height + gap), 0.0
        drawn.append(_text(x.start_px - 8, top + height / 2 + 4, name, "end"))
        for part, value in parts.items():
            if value > 0:
                drawn.append(
                    _rectangle(x(at), top, x(at + value) - x(at), height, f"part-{part}", f"{part} {value:.2f}")
                )
                at += value
    return _svg(bottom + _BOTTOM, [*_axis_below(x, bottom), *drawn])


def stacked_columns(columns: Sequence[Mapping[str, float]], x_label: str, y_label: str) -> str:
    """A thin column for each entry, of its parts from below."""
    x = _across(0, len(columns), x_label)
    y = _up(0, max(sum(parts.values()) for parts in columns) or 1, y_label)
    width = max((x.end_px - x.start_px) / len(columns), 0.5)
    drawn = []
    for number, parts in enumerate(columns):
        at = 0.0
        for part, value in parts.items():
            if value > 0:
                drawn.append(_rectangle(x(number), y(at + value), width, y(at) - y(at + value), f"part-{part}"))
                at += value
    return _svg(HEIGHT, [*_axes(x, y), *drawn])


def histogram(values: Sequence[tuple[float, int]], x_label: str, marks: Mapping[str, float], bins: int = 60) -> str:
    """Counts of (value, how often) in equal bins up to the largest; `marks` are lines with a name."""
    high = max(value for value, _ in values) * 1.02 or 1.0
    counts = [0] * bins
    for value, count in values:
        counts[min(int(value / high * bins), bins - 1)] += count
    x, y = _across(0, high, x_label), _up(0, max(counts) * 1.1, "count")
    width = (x.end_px - x.start_px) / bins
    drawn = [
        _rectangle(x(index * high / bins), y(count), width - 1, y(0) - y(count), "bin", str(count))
        for index, count in enumerate(counts)
        if count
    ]
    for row, (name, value) in enumerate(sorted(marks.items(), key=lambda mark: mark[1])):
        if value <= high:
            drawn.append(f'<line class="mark" x1="{x(value):.1f}" x2="{x(value):.1f}" y1="{_TOP}" y2="{y(0):.1f}"/>')
            anchor = "end" if x(value) > WIDTH * 0.8 else "start"
            shift = -4 if anchor == "end" else 4
            drawn.append(_text(x(value) + shift, _TOP + 12 + 14 * row, name, anchor))
    return _svg(HEIGHT, [*_axes(x, y), *drawn])


def steps(points: Sequence[tuple[float, int]], x_label: str, y_label: str, line: float, line_name: str) -> str:
    """A level that holds until the next point, zero marked in red, and a level of reference."""
    x = _across(points[0][0], max(points[-1][0], points[0][0] + 1e-3), x_label)
    y = _up(0, max(max(level for _, level in points), line) * 1.1, y_label)
    path, dry = [], []
    for (at, level), (until, _) in zip(points, [*points[1:], points[-1]], strict=True):
        path.append(f"{x(at):.1f},{y(level):.1f} {x(until):.1f},{y(level):.1f}")
        if level == 0:
            dry.append(_rectangle(x(at), _TOP, max(x(until) - x(at), 1), y(0) - _TOP, "dry"))
    drawn = [
        *dry,
        f'<polyline class="level" points="{" ".join(path)}"/>',
        f'<line class="mark" x1="{x.start_px}" x2="{x.end_px}" y1="{y(line):.1f}" y2="{y(line):.1f}"/>',
        _text(x.end_px - 4, y(line) - 5, line_name, "end"),
    ]
    return _svg(HEIGHT, [*_axes(x, y), *drawn])


def _across(low: float, high: float, label: str, left: float = _LEFT) -> Axis:
    return Axis(low, high, left, WIDTH - _RIGHT, label)


def _up(low: float, high: float, label: str) -> Axis:
    return Axis(low, high, HEIGHT - _BOTTOM, _TOP, label)


def _axes(x: Axis, y: Axis) -> list[str]:
    drawn = _axis_below(x, HEIGHT - _BOTTOM)
    for tick in y.ticks:
        drawn.append(f'<line class="grid" x1="{x.start_px}" x2="{x.end_px}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        drawn.append(_text(x.start_px - 6, y(tick) + 4, f"{tick:g}", "end"))
    middle = (y.start_px + y.end_px) / 2
    drawn.append(
        f'<text class="label" text-anchor="middle" transform="translate(14 {middle}) rotate(-90)">'
        f"{html.escape(y.label)}</text>"
    )
    return drawn


def _axis_below(x: Axis, at: float) -> list[str]:
    drawn = [f'<line class="axis" x1="{x.start_px}" x2="{x.end_px}" y1="{at}" y2="{at}"/>']
    drawn += [_text(x(tick), at + 14, f"{tick:g}", "middle") for tick in x.ticks]
    drawn.append(_text((x.start_px + x.end_px) / 2, at + 30, x.label, "middle", "label"))
    return drawn


def _rectangle(x: float, y: float, width: float, height: float, style: str, title: str = "") -> str:
    shape = f'<rect class="{html.escape(style)}" x="{x:.1f}" y="{y:.1f}" width="{width:.2f}" height="{height:.2f}"'
    return f"{shape}><title>{html.escape(title)}</title></rect>" if title else f"{shape}/>"


def _text(x: float, y: float, text: str, anchor: str, style: str = "tick") -> str:
    return f'<text class="{style}" text-anchor="{anchor}" x="{x:.1f}" y="{y:.1f}">{html.escape(text)}</text>'


def _svg(height: float, drawn: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img">{"".join(drawn)}</svg>'
