"""The virtual servos without a pty: a port on their own clock, which moves only while the line is waited for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edge_runtime.errors import BusError
from edge_runtime.motors.feetech import FrameDecoder
from edge_runtime.motors.port import BAUD, Port
from edge_runtime.robots.so_follower import SOFollower
from edge_runtime.virtual_arm.bus import BYTE_S, VirtualBus

from .bench import Time


class Wire(Port):
    """Hands each request to `arm` and keeps its answers until they are read; `fail` is asked about each request first.

    It is told the number of the request and its bytes, and says what the line makes of them: `ok`, `deaf` (no servo
    hears it), `silent` (no answer comes back) or `full` (the port does not take it).
    """

    baud = BAUD

    def __init__(self, arm: VirtualBus, clock: Time) -> None:
        super().__init__("/dev/wire")
        self._arm, self._clock = arm, clock
        self._decoder = FrameDecoder()
        self._due: list[tuple[float, bytes]] = []
        self._answers = True
        self.requests = 0
        self.fail: Callable[[int, bytes], str] = lambda number, data: "ok"
        arm._line = self  # type: ignore[assignment]

    @property
    def is_open(self) -> bool:
        return True

    def call(self, act: Callable[[], None]) -> None:
        act()

    def plug(self) -> None:
        """It is."""

    def now(self) -> float:
        return self._clock.seconds

    def write(self, data: bytes) -> None:
        self.requests += 1
        how = self.fail(self.requests, data)
        self._clock.seconds += BYTE_S * len(data)
        if how == "full":
            raise BusError("takes no more bytes")
        self._answers = how != "silent"
        if how != "deaf":
            for request in self._decoder.feed(data):
                self._arm._hear(request)

    def say(self, raw: bytes, when: float) -> None:
        """What a servo says."""
        if self._answers:
            self._due.append((when, raw))
            self._due.sort(key=lambda each: each[0])

    def read(self, deadline: float, most: int = 4096) -> bytes:
        if self._due and self._due[0][0] <= max(deadline, self._clock.seconds):
            when, raw = self._due.pop(0)
            if raw[most:]:
                self._due.insert(0, (when, raw[most:]))
            self._clock.seconds = max(self._clock.seconds, when) + BYTE_S * len(raw[:most])
            return raw[:most]
        self._clock.seconds = max(self._clock.seconds, deadline)
        return b""


@dataclass
class Stage:
    """An SO-101 on such a wire: all of its start and stop in one process, in no time."""

    arm: VirtualBus
    wire: Wire
    clock: Time
    robot: SOFollower
