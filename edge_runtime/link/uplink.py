"""What the line to the server carries: how fast it is, what is on its way, and the JPEG quality that it allows.

A server that acknowledges (`Welcome.understands`) says how much of an observation has arrived. So no more is handed to
the operating system than the line carries in `AHEAD_S`: one upload is on the line at once, pings pass it soon, and what
a broken stream leaves behind is little. With a server that does not, nothing is known, and all is handed over at once.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Literal

from edge_runtime.errors import ProtocolError
from edge_runtime.program.spell import Spell
from edge_runtime.wire import limits

log = logging.getLogger(__name__)

BEST_QUALITY = 93
# Each with the bytes of a picture in proportion to those at 93: estimates, which the next upload corrects.
QUALITIES = {93: 1.0, 85: 0.62, 75: 0.45, 67: 0.38, 60: 0.33}

AHEAD_S = 0.25  # of the line's bytes may be on their way
PIECE_S = 0.05  # of the line's bytes are a piece
LEAST_PIECE = 16 * 1024
LEAST_AHEAD = 64 * 1024
STALLED_S = 2.0  # without an acknowledgement that is due, at least
STALLED_AT_FIRST_S = 5.0  # while the line's speed is not known
LOWER, RAISE = 0.9, 0.6  # of the time in hand: quality goes down above the one, up below the other ...
RAISE_AFTER = 10  # ... so many times in a row


class Uplink:
    """Of one run, over all its streams. `lead_s` is the time in hand when an observation is sent; inf = no hurry."""

    def __init__(
        self,
        jpeg_quality: int | Literal["auto"] = "auto",
        lead_s: float = math.inf,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._adapts = jpeg_quality == "auto"
        self.quality = BEST_QUALITY if jpeg_quality == "auto" else jpeg_quality
        self.lead_s = lead_s
        self.bytes_per_s = 0.0  # 0 = not known yet
        self._clock = clock
        self._changed = threading.Condition()
        self._stream = 0  # which one; those before it are over
        self._acknowledges = False
        self._observation = -1
        self._size = self._handed = self._arrived = 0  # bytes of pictures of this observation
        self._began_s = self._moved_s = self._ended_s = 0.0
        self._took_s = self._rest_s = 0.0  # the last upload; from its end to the answer
        self._easy = 0  # observations in a row that a better quality would not make late
        self._too_slow = Spell()

    # -- a stream's life --------------------------------------------------------------------------------------------

    def open(self, *, acknowledges: bool) -> int:
        """A stream was welcomed: its number, for `begin` and `wait_for_room`."""
        with self._changed:
            self._end()
            self._acknowledges = acknowledges
            return self._stream

    def close(self) -> None:
        """The stream is over: a caller that waits for room returns without it."""
        with self._changed:
            self._end()

    def begin(self, stream: int, observation: int, size: int) -> bool:
        """An upload begins once the last has arrived; False when the stream is over."""
        with self._changed:
            self._changed.wait_for(lambda: stream != self._stream or self._arrived >= self._handed)
            if stream != self._stream:
                return False
            self._observation, self._size, self._handed, self._arrived = observation, size, 0, 0
            self._began_s = self._moved_s = self._ended_s = self._clock()
            return True

    def wait_for_room(self, stream: int, size: int) -> bool:
        """Returns when `size` bytes may be handed over; False when the stream is over."""
        with self._changed:
            if self._acknowledges:
                self._changed.wait_for(lambda: stream != self._stream or self._on_the_way() + size <= self._window())
            if stream != self._stream:
                return False
            if self._acknowledges:
                if not self._on_the_way():
                    self._moved_s = self._clock()
                self._handed += size
            return True

    # -- what the server says ---------------------------------------------------------------------------------------

    def received(self, observation: int, arrived: int) -> None:
        """So many bytes of it have arrived. Raises ProtocolError for more than was sent."""
        with self._changed:
            if observation != self._observation or not self._arrived < arrived <= self._handed:
                raise ProtocolError(f"the server received {arrived} bytes of observation {observation}, not sent to it")
            now_s = self._clock()
            self._arrived, self._moved_s = arrived, now_s
            if arrived >= min(LEAST_PIECE, self._size):
                self.bytes_per_s = arrived / max(now_s - self._began_s, 1e-6)
            if arrived == self._size:
                self._ended_s, self._took_s = now_s, now_s - self._began_s
                self._tell_need(now_s)
            self._changed.notify_all()

    def answered(self, observation: int) -> None:
        if observation == self._observation and self._arrived == self._size:
            self._rest_s = self._clock() - self._ended_s

    @property
    def is_busy(self) -> bool:
        """An observation is on its way and gets on: neither an answer nor a pong can be due."""
        with self._changed:
            if not self._acknowledges or self._arrived >= self._size:
                return False
            due_s = 3 * self._on_the_way() / self.bytes_per_s if self.bytes_per_s else STALLED_AT_FIRST_S
            return self._clock() - self._moved_s < max(STALLED_S, due_s)

    @property
    def awaits_acknowledgement(self) -> bool:
        """Pieces are on their way, and the server says of each that it has arrived."""
        with self._changed:
            return self._acknowledges and self._on_the_way() > 0

    # -- what is made of it -----------------------------------------------------------------------------------------

    @property
    def piece(self) -> int:
        """Bytes of a piece."""
        if not self._acknowledges:
            return limits.PIECE
        return min(max(int(PIECE_S * self.bytes_per_s), LEAST_PIECE), limits.PIECE)

    def choose_quality(self) -> int:
        """For the next observation: lower only where the queue would run dry before the answer comes."""
        if not self._adapts or not self.bytes_per_s or not self._size or math.isinf(self.lead_s):
            return self.quality
        names = list(QUALITIES)
        at = names.index(self.quality)

        def late(index: int, part: float) -> bool:
            upload_s = self._size * QUALITIES[names[index]] / QUALITIES[self.quality] / self.bytes_per_s
            return upload_s + self._rest_s > part * self.lead_s

        if late(at, LOWER):
            self._easy = 0
            self._turn_to(next((names[index] for index in range(at, len(names)) if not late(index, LOWER)), names[-1]))
        elif at and not late(at - 1, RAISE):
            self._easy += 1
            if self._easy >= RAISE_AFTER:
                self._easy = 0
                self._turn_to(names[at - 1])
        else:
            self._easy = 0
        return self.quality

    def _turn_to(self, quality: int) -> None:
        before, self.quality = self.quality, quality
        if before == BEST_QUALITY and quality != BEST_QUALITY:
            log.warning(
                "the line carries %.1f Mbit/s: pictures go out with JPEG quality %d instead of %d, "
                "and the policy sees coarser pictures",
                self.bytes_per_s * 8e-6,
                quality,
                BEST_QUALITY,
            )
        elif before != BEST_QUALITY and quality == BEST_QUALITY:
            log.info("pictures go out with JPEG quality %d again", BEST_QUALITY)

    def _tell_need(self, now_s: float) -> None:
        """Once, where nothing is left to adapt and an observation takes longer than the plan lasts."""
        worst = not self._adapts or self.quality == min(QUALITIES)
        if self._took_s <= min(self.lead_s, STALLED_AT_FIRST_S) or not worst:
            self._too_slow.succeeds(now_s)
        elif self._too_slow.fails(now_s):
            log.warning(
                "an observation takes %.2g s at %.1f Mbit/s: --jpeg_quality, --resize, smaller cameras",
                self._took_s,
                self.bytes_per_s * 8e-6,
            )

    def _on_the_way(self) -> int:
        return self._handed - self._arrived

    def _window(self) -> int:
        return max(int(AHEAD_S * self.bytes_per_s), LEAST_AHEAD)

    def _end(self) -> None:
        self._stream += 1
        self._acknowledges = False
        self._size = self._handed = self._arrived = 0
        self._observation = -1
        self._changed.notify_all()
