"""A camera fails under a running arm: observations pause, the arm holds, and both go on when pictures come again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pytest

from edge_runtime.wire.messages import Camera
from scripts.rig.program import Edge
from tests.edge_runtime.cameras.test_cameras import GREETING, MjpegServer, flat, shade
from tests.faults.bench import Bench, bench, policy

if TYPE_CHECKING:
    from typing_extensions import Self

FPS = 30


class Film(MjpegServer):
    """A camera in real time, which delivers while it `rolls`; `picture` makes each frame from its number."""

    def __init__(self, picture: Callable[[int], npt.NDArray[np.uint8]] = shade) -> None:
        super().__init__()
        self.greeting = [picture(number) for number in range(1, GREETING + 1)]
        self.rolls = True
        self._picture = picture
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._roll, daemon=True)

    def __enter__(self) -> Self:
        super().__enter__()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        super().__exit__(None, None, None)

    def _roll(self) -> None:
        number = 0
        while not self._over.wait(1 / FPS):
            number += 1
            if self.rolls:
                self.send(self._picture(number % 200))


@pytest.fixture(scope="module")
def film() -> Iterator[Film]:
    with Film() as film:
        yield film


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench(tmp_path_factory.mktemp("camera"), policy=policy((Camera("front", 48, 64),))) as rig:
        yield rig


@pytest.fixture(scope="module")
def edge(rig: Bench, film: Film) -> Iterator[Edge]:
    camera = f"{{front: {{type: opencv, index_or_path: '{film.url}', fps: {FPS}}}}}"
    with rig.running(f"--robot.cameras={camera}") as edge:
        yield edge
        assert edge.end() == 0, edge.text


def test_without_pictures_the_arm_holds(rig: Bench, edge: Edge, film: Film) -> None:
    film.rolls = False
    edge.wait_for("observations pause: camera front: the newest frame is 0.")
    edge.wait_for("-> holding")
    rig.wait_for_goals(5)  # the loop keeps its rate
    film.rolls = True
    edge.wait_for("-> running")
    edge.wait_for("observations go on")  # said once all has been well for a while


def test_a_camera_that_goes_away_is_found_again(edge: Edge, film: Film) -> None:
    before = film.connections
    film.hang_up()
    edge.wait_for("stopped delivering frames; trying again")
    film.wait_for_connections(before + 1)
    edge.wait_for("camera front is back")


def test_a_camera_that_comes_back_in_another_size_is_not_looked_through(rig: Bench, edge: Edge, film: Film) -> None:
    greeting, film.greeting = film.greeting, [flat((9, 9, 9), 32, 32)] * 3
    film.hang_up()
    edge.wait_for("observations pause")
    edge.wait_for("-> holding")
    film.greeting = greeting
    film.hang_up()
    edge.wait_for("-> running")
    edge.wait_for("observations go on")  # said once all has been well for a while
