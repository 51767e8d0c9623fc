"""How far a hand has moved a joint, in ticks that go on where the encoder begins again."""

from __future__ import annotations

from typing import NamedTuple

from edge_runtime.motors.feetech import TICKS_PER_TURN

MIDDLE = 2047  # LeRobot's: half of the largest tick, rounded down
GREATEST_OFFSET = 2047
WIDEST = 4000  # ticks; a joint that moved further has no range


class Range(NamedTuple):
    """What a servo keeps: it reports shaft - `offset`, between `low` and `high`."""

    offset: int
    low: int
    high: int


def homing_offset(shaft: int) -> int:
    """The offset with which a joint at `shaft` reports MIDDLE; at 4095 one tick more, since a servo takes ±2047."""
    return min(_shortest(shaft - MIDDLE), GREATEST_OFFSET)


class Travel:
    """The extremes of one joint while a hand moves it, as it reports them with the offset of that time.

    A step of more than half a turn is one the other way, across the encoder's end: so between two looks a joint must
    not move by more.
    """

    def __init__(self, ticks: int) -> None:
        self.now = self.low = self.high = ticks

    def follow(self, ticks: int) -> None:
        self.now = ticks + TICKS_PER_TURN * round((self.now - ticks) / TICKS_PER_TURN)
        self.low, self.high = min(self.low, self.now), max(self.high, self.now)

    @property
    def span(self) -> int:
        return self.high - self.low

    @property
    def is_range(self) -> bool:
        """Whether there is an offset that keeps the encoder's end outside."""
        return self.span <= WIDEST

    def settle(self, offset: int) -> Range:
        """What to keep, measured with `offset`: that, or where a range crosses the end another that centres it."""
        if self.low >= 0 and self.high < TICKS_PER_TURN:
            return Range(offset, self.low, self.high)
        shift = (self.low + self.high) // 2 - MIDDLE
        wanted = _shortest(offset + shift)
        taken = min(wanted, GREATEST_OFFSET)
        shift -= wanted - taken
        return Range(taken, self.low - shift, self.high - shift)


def _shortest(ticks: int) -> int:
    """The same angle in -2047..2048."""
    return (ticks + GREATEST_OFFSET) % TICKS_PER_TURN - GREATEST_OFFSET
