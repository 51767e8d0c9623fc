"""The line to the server on the test's own clock: what is handed over, when it is stuck, which quality it allows."""

from __future__ import annotations

import logging

import pytest

from edge_runtime.errors import ProtocolError
from edge_runtime.link.uplink import LEAST_AHEAD, LEAST_PIECE, Uplink
from edge_runtime.wire import limits


class Line:
    """An uplink whose server acknowledges what a line of `bytes_per_s` has carried."""

    def __init__(self, bytes_per_s: float, lead_s: float = 1.5) -> None:
        self.now_s = 0.0
        self.bytes_per_s = bytes_per_s
        self.number = 0
        self.uplink = Uplink("auto", lead_s, clock=lambda: self.now_s)
        self.stream = self.uplink.open(acknowledges=True)

    def upload(self, size: int) -> None:
        self.number += 1
        assert self.uplink.begin(self.stream, self.number, size)
        arrived = 0
        while arrived < size:
            piece = min(self.uplink.piece, size - arrived)
            assert self.uplink.wait_for_room(self.stream, piece)
            assert self.uplink.is_busy
            self.now_s += piece / self.bytes_per_s
            assert self.uplink.is_busy
            arrived += piece
            self.uplink.received(self.number, arrived)
        assert not self.uplink.is_busy
        self.uplink.answered(self.number)


def test_an_upload_of_fifteen_seconds_is_no_silence_and_what_it_needs_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    line = Line(125_000)
    line.uplink.quality = 60
    for _ in range(3):
        line.upload(1_843_200)
    said = [record.getMessage() for record in caplog.records]
    assert said == ["an observation takes 15 s at 1.0 Mbit/s: --jpeg_quality, --resize, smaller cameras"]


def test_a_line_that_carries_nothing_more_is_stuck() -> None:
    line = Line(125_000)
    line.upload(100_000)
    assert line.uplink.begin(line.stream, 9, 100_000)
    assert line.uplink.wait_for_room(line.stream, LEAST_PIECE)
    line.now_s += 3
    assert not line.uplink.is_busy


def test_pieces_and_what_is_ahead_follow_the_line() -> None:
    slow, fast = Line(125_000), Line(1e9)
    slow.upload(300_000)
    fast.upload(300_000)
    assert (slow.uplink.piece, fast.uplink.piece) == (LEAST_PIECE, limits.PIECE)
    assert (slow.uplink._window(), fast.uplink._window() > 10_000_000) == (LEAST_AHEAD, True)


def test_a_server_that_acknowledges_nothing_gets_all_at_once() -> None:
    uplink = Uplink()
    stream = uplink.open(acknowledges=False)
    for number in range(2):
        assert uplink.begin(stream, number, 1 << 24)
        assert uplink.wait_for_room(stream, 1 << 24)
        assert not uplink.is_busy
    assert uplink.piece == limits.PIECE


def test_an_acknowledgement_of_what_was_not_sent_is_refused() -> None:
    line = Line(125_000)
    line.uplink.begin(line.stream, 1, 1000)
    line.uplink.wait_for_room(line.stream, 500)
    for observation, size in ((1, 501), (2, 100), (1, 0)):
        with pytest.raises(ProtocolError, match="not sent to it"):
            line.uplink.received(observation, size)


def test_a_stream_that_ends_keeps_nobody_waiting() -> None:
    line = Line(125_000)
    line.uplink.begin(line.stream, 1, 1 << 20)
    line.uplink.close()
    assert not line.uplink.wait_for_room(line.stream, 1 << 20)
    assert not line.uplink.begin(line.stream, 2, 1 << 20)


def test_quality_goes_down_only_while_the_queue_would_run_dry_and_back_up_slowly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    line = Line(250_000)
    line.upload(300_000)  # 1.2 s of the 1.5 s in hand
    assert line.uplink.choose_quality() == 93
    line.bytes_per_s = 125_000
    line.upload(300_000)
    assert line.uplink.choose_quality() == 75
    line.upload(135_000)
    assert line.uplink.choose_quality() == 75
    line.bytes_per_s = 1_000_000
    qualities = []
    for _ in range(20):
        line.upload(135_000)
        qualities.append(line.uplink.choose_quality())
    assert qualities == [75] * 9 + [85] * 10 + [93]
    line.bytes_per_s = 50_000
    line.upload(300_000)
    assert line.uplink.choose_quality() == 60
    said = [record.getMessage().partition(":")[0] for record in caplog.records]
    assert said == [
        "the line carries 1.0 Mbit/s",
        "pictures go out with JPEG quality 93 again",
        "the line carries 0.4 Mbit/s",
    ]
