"""A question is answered by what is typed after it."""

from __future__ import annotations

import io
import os
import select

from edge_runtime.tools.bringup.terminal import Terminal


class Screen(io.StringIO):
    """A terminal on which the person at `keyboard` answers whatever is asked, and not before."""

    def __init__(self, keyboard: int) -> None:
        super().__init__()
        self._keyboard = keyboard

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        if self.getvalue().endswith("? "):
            os.write(self._keyboard, b"read and understood\n")


def test_what_was_typed_before_the_question_is_no_answer() -> None:
    keyboard, line = os.openpty()
    with os.fdopen(keyboard, "wb"), os.fdopen(line) as source:
        os.write(keyboard, b"\n")  # Enter once too often
        assert select.select([source], [], [], 20)[0]
        assert Terminal("calibrate", source, Screen(keyboard)).ask("Does somebody hold it?") == "read and understood"
