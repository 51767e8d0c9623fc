"""A serial port in the same process as its servos, on a clock that passes only while somebody waits."""

from __future__ import annotations

import heapq
import threading

from edge_runtime.errors import BusError
from edge_runtime.motors.clock import Clock
from edge_runtime.motors.feetech import FrameDecoder, frame
from edge_runtime.motors.port import BAUD, Port
from edge_runtime.virtual_arm.chain import ServoChain


class VirtualClock(Clock):
    """Seconds that pass when they are waited for. Calling it is `now`, as a chain's `clock` is called."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds

    def now(self) -> float:
        return self.seconds

    def wait(self, seconds: float, until: threading.Event) -> bool:
        """Let `seconds` pass; whether `until` is set."""
        self.seconds += max(seconds, 0.0)
        return until.is_set()

    def wait_until(self, time: float) -> None:
        """Let the time pass up to `time`; none where that is past."""
        self.seconds = max(self.seconds, time)


class VirtualPort(Port):
    """The port that `chain` is on, for a `Bus`: no thread, no pty, no file descriptor.

    `clock` is the chain's own too. `read` waits on it, until the answer or until its deadline. BusError once the chain
    is unplugged, as of an adapter that was pulled out; it can be opened again when that is back.
    """

    def __init__(self, chain: ServoChain, clock: VirtualClock) -> None:
        self.path = "virtual"
        self._chain, self._clock = chain, clock
        self._baud = BAUD
        self._open = False
        self._decoder = FrameDecoder()
        self._due: list[tuple[float, int, bytes]] = []  # a heap; the number keeps equals in order
        self._said = 0
        self._free_s = 0.0  # when the wire has carried all that was said

    @property
    def is_open(self) -> bool:
        return self._open

    def open(self) -> None:
        """BusError while the chain is unplugged."""
        if not self._chain.plugged:
            raise BusError(f"robot.port: {self.path} is not there", port=self.path)
        self._open = True
        self._due.clear()
        self._decoder.reset()

    def close(self) -> None:
        self._open = False

    def fileno(self) -> int:
        raise BusError(f"{self.path}: has no file descriptor", port=self.path)

    def now(self) -> float:
        """Of the clock, for the deadlines of `read`."""
        return self._clock.seconds

    def set_baud(self, baud: int) -> None:
        self._baud = baud

    def write(self, data: bytes) -> None:
        self._check()
        for request in self._decoder.feed(data):
            ended = max(self._clock.seconds, self._free_s) + self._chain.duration(frame(*request))
            answer = self._chain.hear(request, self._baud)
            self._free_s = ended + answer.busy_s
            for after_s, raw in answer.said:
                self._said += 1
                heapq.heappush(self._due, (ended + after_s, self._said, raw))

    def read(self, deadline: float, most: int = 4096) -> bytes:
        self._check()
        if not self._due or self._due[0][0] > max(deadline, self._clock.seconds):
            self._clock.wait_until(deadline)
            return b""
        self._clock.wait_until(self._due[0][0])
        data = b""
        while self._due and self._due[0][0] <= self._clock.seconds and len(data) < most:
            when, number, raw = heapq.heappop(self._due)
            taken = most - len(data)
            data += raw[:taken]
            if raw[taken:]:
                heapq.heappush(self._due, (when, number, raw[taken:]))
        return data

    def _check(self) -> None:
        if not self._open:
            raise BusError(f"{self.path}: is not open", port=self.path)
        if not self._chain.plugged:
            raise self._hung_up()
