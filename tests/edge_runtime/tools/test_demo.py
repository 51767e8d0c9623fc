"""What the demo says of its runs, and the pictures it draws of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from edge_runtime.config import Mode
from edge_runtime.tools.demo.cli import DemoConfig, introduction, table
from edge_runtime.tools.demo.comparison import Run
from edge_runtime.tools.demo.pictures import Views, plot_levels
from edge_runtime.virtual_arm.web import WebServer


def run(mode: Mode, times: dict[int, float | None], starved: int = 0) -> Run:
    """Seed -> task time, None where it was not solved; half a second of waiting before each first chunk."""
    episodes = [
        {
            "seed": seed,
            "success": time_s is not None,
            "time_s": time_s or 12.0,
            "starved": 15 + starved,
            "starved_after_first_chunk": starved,
        }
        for seed, time_s in times.items()
    ]
    levels = [(tick / 30, 0, max(40 - tick, 0) * (tick > 15)) for tick in range(120)]
    return Run(mode, {"control_hz": 30.0, "episodes": episodes}, levels)


def runs(sequential: dict[int, float | None], async_: dict[int, float | None]) -> dict[Mode, Run]:
    return {"sequential": run("sequential", sequential, starved=60), "async": run("async", async_)}


def test_waits_for_the_first_chunk_are_told_from_those_that_could_be_avoided() -> None:
    said = table(runs({0: 6.0, 1: 8.0}, {0: 5.0, 1: 5.0}))
    _, sequential, asynchronous, verdict = said.splitlines()
    assert " ".join(sequential.split()) == "sequential 7.00 s 2/2 1.0 s 4.0 s, 120 ticks"
    assert " ".join(asynchronous.split()) == "asynchronous 5.00 s 2/2 1.0 s 0.0 s, 0 ticks"
    assert verdict.startswith("asynchronous is 1.40 times faster")


@pytest.mark.parametrize(
    ("sequential", "async_", "last"),
    [
        (
            {0: 6.0, 1: 8.0},
            {0: 5.0, 1: None},
            "sequential alone solved 1, asynchronous alone 0: by chance with p = 0.50",
        ),
        ({0: 6.0, 1: None}, {0: 5.0, 1: 5.0}, "asynchronous is 1.20 times faster"),  # nothing speaks against it
        ({0: 6.0}, {0: None}, "sequential alone solved 1"),
        ({0: None}, {0: None}, "no seed was solved by both"),
    ],
)
def test_chance_is_spoken_of_where_asynchronous_solved_less(
    sequential: dict[int, float | None], async_: dict[int, float | None], last: str
) -> None:
    assert table(runs(sequential, async_)).splitlines()[-1].startswith(last)


def test_the_baseline_is_explained() -> None:
    said = introduction(DemoConfig(episodes=16), "images")
    assert "16 episodes each way, about 3 min" in said
    assert "executes 25 actions of a chunk of 50" in said
    assert "Both see the scene once in 25 actions" in said
    whole = introduction(DemoConfig(sequential_actions=50), "state")
    assert "executes 50 actions of a chunk of 50" in whole
    assert "Both see" not in whole


def test_the_queue_is_drawn(tmp_path: Path) -> None:
    plot_levels(runs({0: 4.0}, {0: 3.0}), 25, tmp_path / "levels.png")
    assert cv2.imread(str(tmp_path / "levels.png")) is not None


class TwoFrames:
    """The cameras of a web server, each of which shows its own grey."""

    def __init__(self) -> None:
        self.views = {"static": 60, "wrist": 200}

    def watch(self, name: str) -> Iterator[bytes]:
        for _ in range(2):
            yield cv2.imencode(".jpg", np.full((96, 96, 3), self.views[name], np.uint8))[1].tobytes()


def test_what_the_cameras_saw_becomes_a_picture(tmp_path: Path) -> None:
    views = Views()
    assert not views.save(tmp_path / "views.png")
    with WebServer(pages={}, actions={}, cameras=TwoFrames()) as web:  # type: ignore[arg-type]
        for time_s in (0.1, 2.0, 5.0):
            views.look({name: f"{web.url}/cameras/{name}" for name in TwoFrames().views}, time_s)
    assert views.save(tmp_path / "views.png")
    picture = cv2.imread(str(tmp_path / "views.png"))
    assert {60, 200} <= set(np.unique(picture))
