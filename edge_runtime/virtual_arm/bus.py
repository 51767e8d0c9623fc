"""Six virtual servos behind a pseudo-terminal: what a serial adapter with an SO-101 on it looks like to a client."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from edge_runtime.motors.feetech import Frame, frame
from edge_runtime.virtual_arm.chain import ServoChain
from edge_runtime.virtual_arm.line import Line

if TYPE_CHECKING:
    from typing_extensions import Self


class VirtualBus(ServoChain):
    """A chain of servos on a pty; a context manager. Further keywords are `ServoChain`'s.

    `path` is what a client opens: `link`, a symlink that survives unplugging, or else the pty's own name. The pty stays
    when a client leaves.
    """

    def __init__(self, *, link: Path | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self._line_free_s = 0.0  # when the wire has carried all that was said
        self._line = Line(link, self._hear)

    def __enter__(self) -> Self:
        self._line.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._line.close()

    @property
    def path(self) -> str:
        """What a client opens; empty while unplugged."""
        return self._line.path

    def plug(self, on: bool) -> None:
        """Plug the adapter in, or pull it out; twice is harmless. OutputError when the link cannot be made."""
        self._line.call(self._line.plug if on else self._line.unplug)
        super().plug(on)

    def _hear(self, request: Frame) -> None:
        """A request came from the client: put what the servos say on the line."""
        ended = max(time.monotonic(), self._line_free_s) + self.duration(frame(*request))
        answer = self.hear(request, self._line.baud)
        for after_s, raw in answer.said:
            self._line.say(raw, ended + after_s)
        self._line_free_s = ended + answer.busy_s
