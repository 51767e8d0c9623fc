"""A figure for a page: a PNG 1200 pixels wide, in colours that everyone can tell apart (Okabe and Ito 2008)."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK, GREY = COLOURS

_INCHES, _DPI = 9.6, 125


@contextmanager
def picture(path: Path, height_px: int, rows: int = 1, columns: int = 1, **shared: Any) -> Iterator[Any]:
    """Yields an array (rows, columns) of matplotlib axes; what was drawn on them is written to `path` at the end.

    The same drawing gives the same bytes. matplotlib is needed here only (the extra `demo`).
    """
    from matplotlib.figure import Figure
    from PIL import Image

    figure = Figure((_INCHES, height_px / _DPI), _DPI, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **shared)
    for axis in axes.flat:
        axis.grid(alpha=0.3)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    yield axes
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    with Image.open(drawn) as image:  # a palette takes a third of the bytes, and no eye sees it
        image.convert("RGB").quantize(256).save(path, "PNG", optimize=True)


def legend(axis: Any, columns: int) -> None:
    """What is drawn on `axis`, named below all axes, where it hides nothing."""
    axis.figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=columns, frameon=False)
