"""The memory that loop and supervisor share: until when all is well, and whether the arm has changed hands."""

from __future__ import annotations

import mmap
import os

FOR_EVER_NS = 1 << 60  # of the monotonic clock

_PATIENT_UNTIL, _FENCED, _REST_NS = 0, 1, 2  # 64-bit words, as in `_realtime`
_SIZE = 24


class Page:
    """Three words behind a file descriptor: the loop moves the first on, the supervisor sets the second once, and the
    third is how long the runtime may take, once the loop has ended, to bring the arm to rest.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.words = memoryview(mmap.mmap(fd, _SIZE)).cast("q")

    @classmethod
    def create(cls) -> Page:
        """A new one, in anonymous memory."""
        fd = os.memfd_create("edge-runtime-supervisor")
        os.ftruncate(fd, _SIZE)
        page = cls(fd)
        page.reset()
        return page

    def reset(self, rests_within_s: float = 0.0) -> None:
        """The arm is the runtime's: until the loop ticks for as long as it takes, after that for `rests_within_s`."""
        self.words[_REST_NS] = int(rests_within_s * 1e9)
        self.words[_PATIENT_UNTIL] = FOR_EVER_NS
        self.words[_FENCED] = 0

    @property
    def patient_until_ns(self) -> int:
        """On the monotonic clock: later without a sign of life, the supervisor stops the arm."""
        return self.words[_PATIENT_UNTIL]

    @property
    def is_fenced(self) -> bool:
        """The arm is the supervisor's: the loop writes no more."""
        return self.words[_FENCED] != 0

    def fence(self) -> None:
        self.words[_FENCED] = 1
