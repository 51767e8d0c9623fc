"""What the demo leaves in its folder: the queue's level over time, and what the cameras saw."""

from __future__ import annotations

import threading
from pathlib import Path

import cv2
import numpy as np

from edge_runtime.config import Mode
from edge_runtime.demo.comparison import Run
from edge_runtime.wire.messages import Pixels

COLOURS: dict[Mode, str] = {"sequential": "tab:orange", "async": "tab:blue"}
VIEW_PX = 192


def plot_levels(runs: dict[Mode, Run], threshold_rows: int, path: Path) -> None:
    """The queue's level in the first episode of each mode, one under the other on the same time axis."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(runs), 1, sharex=True, sharey=True, figsize=(9, 5), layout="constrained")
    for axis, (mode, run) in zip(axes, runs.items(), strict=True):
        rows = [(time_s, level) for time_s, episode, level in run.levels if episode == 0]
        times = np.array([time_s for time_s, _ in rows]) - (rows[0][0] if rows else 0.0)
        levels = np.array([level for _, level in rows])
        axis.fill_between(times, levels, step="post", color=COLOURS[mode], alpha=0.35)
        axis.step(times, levels, where="post", color=COLOURS[mode])
        axis.fill_between(times, -2, 0, where=levels == 0, step="post", color="tab:red", label="empty: the arm stands")
        if mode == "async":
            axis.axhline(threshold_rows, color="grey", linestyle="--", linewidth=1, label="asks for the next chunk")
        axis.set_title(f"{mode}: {run.episodes[0]['time_s']:.1f} s" if run.episodes else mode)
        axis.set_ylabel("queued actions")
        axis.legend(loc="upper right", fontsize="small")
    axes[-1].set_xlabel("seconds in the first episode")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


class Views:
    """Follows the virtual cameras and keeps a frame of each every `every_s`, for a contact sheet."""

    def __init__(self, urls: dict[str, str], every_s: float = 0.5, most: int = 8) -> None:
        self._urls = urls
        self._every_s = every_s
        self._most = most
        self._stop = threading.Event()
        self._columns: list[list[Pixels]] = []
        self._thread = threading.Thread(target=self._follow, name="views", daemon=True)

    def start(self) -> None:
        if self._urls:
            self._thread.start()

    def save(self, path: Path) -> bool:
        """Write what was kept as one picture, a row a camera; False when nothing was."""
        self._stop.set()
        if self._urls:
            self._thread.join()
        if not self._columns:
            return False
        columns = [
            np.vstack([cv2.resize(view, (VIEW_PX, VIEW_PX), interpolation=cv2.INTER_NEAREST) for view in column])
            for column in self._columns
        ]
        return cv2.imwrite(str(path), np.hstack(columns))

    def _follow(self) -> None:
        captures = [cv2.VideoCapture(url) for url in self._urls.values()]
        try:
            while len(self._columns) < self._most and not self._stop.wait(self._every_s):
                column: list[Pixels] = []
                for capture in captures:
                    for _ in range(int(self._every_s * 30)):
                        capture.grab()
                    ok, view = capture.retrieve()
                    if ok:
                        column.append(view)  # type: ignore[arg-type]
                if len(column) == len(captures):
                    self._columns.append(column)
        finally:
            for capture in captures:
                capture.release()
