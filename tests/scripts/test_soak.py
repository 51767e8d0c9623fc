"""The soak's own books: what breaks it off is told, and who judged nothing vouches for nothing."""

from __future__ import annotations

import threading

import pytest

from scripts import soak


class Runtime:
    """Runs until it is told to stop."""

    def __init__(self) -> None:
        self._stopped = threading.Event()

    def run(self) -> None:
        assert self._stopped.wait(20), "nobody stopped it"

    def stop(self) -> None:
        self._stopped.set()


def test_a_soak_that_breaks_off_ends_the_run_and_says_why() -> None:
    class Broken:
        def run(self) -> None:
            raise ConnectionRefusedError("the virtual arm is gone")

    with pytest.raises(ConnectionRefusedError, match="the virtual arm is gone"):
        soak.run_beside(Broken(), Runtime())


def test_no_promise_is_kept_when_nothing_was_judged(capsys: pytest.CaptureFixture[str]) -> None:
    torment = soak.Torment(soak.SoakConfig(), None, soak.Watch(), soak.BusJudge(max_speed=300, fps=30))
    assert torment.verdict() == 1
    assert "BROKEN: no goal on the bus was judged" in capsys.readouterr().out
