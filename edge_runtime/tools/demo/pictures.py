"""What the demo leaves in its folder: the queue's level over time, and what the cameras saw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np

from edge_runtime.config import Mode
from edge_runtime.program import direct
from edge_runtime.tools.demo.comparison import Run
from edge_runtime.wire.messages import Pixels

COLOURS: dict[Mode, str] = {"sequential": "tab:orange", "async": "tab:blue"}
GAP_S = 0.2  # between two ticks: some were missed
BUSY_S = 0.3
HEADROOM = 1.3  # for the legend
VIEWS = 8


def plot_levels(runs: dict[Mode, Run], threshold_rows: int, path: Path) -> None:
    """The queue's level in the first episode of each mode, one under the other on the same time axis."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(len(runs), 1, sharex=True, sharey=True, figsize=(9, 5), layout="constrained")
    for axis, (mode, run) in zip(axes, runs.items(), strict=True):
        rows = [(time_s, level) for time_s, episode, level in run.levels if episode == 0]
        times = np.array([time_s for time_s, _ in rows])
        times += run.episodes[0]["time_s"] - times[-1]  # the last row is of the end
        levels = np.array([float(level) for _, level in rows])
        first = np.logical_or.accumulate(levels > 0)  # from the first chunk on
        levels[np.diff(times, append=times[-1:]) > GAP_S] = np.nan  # nothing is known of the time between
        axis.fill_between(times, levels, step="post", color=COLOURS[mode], alpha=0.35)
        axis.step(times, levels, where="post", color=COLOURS[mode])
        for when, colour, label in (
            (~first, "tab:gray", "no chunk yet"),
            (first & (levels == 0), "tab:red", "empty: the arm stands still"),
        ):
            if when.any():
                axis.fill_between(times, -2, 0, where=when, step="post", color=colour, label=label)
        if mode == "async":
            axis.axhline(threshold_rows, color="grey", linestyle="--", linewidth=1, label="asks for the next chunk")
        axis.set_title(_title(mode, run.episodes[0], lost_s=-times[0]))
        axis.set_ylabel("queued actions")
        axis.legend(loc="upper right", fontsize="small", ncols=2)
    axes[0].set_ylim(top=HEADROOM * max((level for run in runs.values() for _, _, level in run.levels), default=1))
    axes[-1].set_xlabel("seconds since the scene was placed, first episode")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _title(mode: Mode, episode: dict[str, Any], lost_s: float) -> str:
    """Times are the scene's; `lost_s` went by while this computer was too busy to keep it at the clock."""
    said = f"{mode}: {'done' if episode['success'] else 'given up'} after {episode['time_s']:.1f} s"
    return said + (f"; this computer was busy, and the scene stood still for {lost_s:.1f} s" if lost_s > BUSY_S else "")


class Views:
    """What the cameras saw in the course of an episode, for a contact sheet."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, dict[str, Pixels]]] = []

    def look(self, cameras: dict[str, str], time_s: float) -> None:
        """Keep what each camera (name -> URL of its MJPEG) sees `time_s` after the start."""
        if cameras:
            self._seen.append((time_s, {name: _snapshot(url) for name, url in cameras.items()}))

    def save(self, path: Path) -> bool:
        """Write some of it, from the first to the last, as one picture, a row a camera; False when there is nothing."""
        if not self._seen:
            return False
        times = np.array([time_s for time_s, _ in self._seen])
        chosen = [int(np.abs(times - time_s).argmin()) for time_s in np.linspace(times[0], times[-1], VIEWS)]
        names = list(self._seen[0][1])
        pyplot = _pyplot()
        figure, axes = pyplot.subplots(
            len(names), VIEWS, figsize=(1.5 * VIEWS, 1.6 * len(names)), squeeze=False, layout="constrained"
        )
        for column, index in enumerate(chosen):
            time_s, views = self._seen[index]
            axes[0, column].set_title(f"{time_s:.1f} s", fontsize="small")
            for row, name in enumerate(names):
                axes[row, column].imshow(views[name])
                axes[row, column].set(xticks=[], yticks=[])
        for row, name in enumerate(names):
            axes[row, 0].set_ylabel(name)
        figure.suptitle("asynchronous, the first episode")
        figure.savefig(path, dpi=110)
        pyplot.close(figure)
        return True


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _snapshot(url: str) -> Pixels:
    """The next frame of an MJPEG stream."""
    with direct.urlopen(url, 5) as stream:
        length = 0
        while line := stream.readline().strip():
            if line.lower().startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        jpeg = np.frombuffer(stream.read(length), np.uint8)
    view = cv2.imdecode(jpeg, cv2.IMREAD_COLOR_RGB)
    assert view is not None  # the arm made it
    return view  # type: ignore[return-value]
