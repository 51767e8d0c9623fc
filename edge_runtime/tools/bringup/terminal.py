"""A person at a terminal: asked, told, and shown a table that changes in place."""

from __future__ import annotations

import select
import sys
import termios
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from edge_runtime.errors import UsageError

WIDTH = 80
_AWAKE_S = 0.2  # between two looks at signals


def wrap(text: str, lead: str) -> str:
    """`text` after `lead`, further lines under its beginning; paths and names are not broken."""
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=lead,
        subsequent_indent=" " * len(lead),
        break_long_words=False,
        break_on_hyphens=False,
    )


class Terminal:
    """Standard input and output of the program `word`; UsageError unless both are a terminal."""

    def __init__(self, word: str, source: TextIO = sys.stdin, target: TextIO = sys.stdout) -> None:
        if not (source.isatty() and target.isatty()):
            raise UsageError(f"{word} asks and shows: it needs a terminal on standard input and output")
        self._source, self._target = source, target
        self._shown = 0  # lines of the table that is on the screen

    def say(self, text: str = "") -> None:
        """A line, or several, below all that is there."""
        self._shown = 0
        print(text, file=self._target, flush=True)

    def mark(self, sign: str, text: str) -> None:
        """How something went: `sign` is ✓ or ✗."""
        self.say(wrap(text, f"  {sign} "))

    def ask(self, question: str) -> str:
        """The answer, without spaces around it. KeyboardInterrupt at the end of input, as for Ctrl-C.

        What was typed before the question is no answer: a key pressed twice must not let the arm fall.
        """
        self._shown = 0
        termios.tcflush(self._source, termios.TCIFLUSH)
        print(question, end=" ", file=self._target, flush=True)
        return self._read()

    def show(self, lines: Sequence[str]) -> None:
        """`lines` in place of those that the last `show` left."""
        up = f"\x1b[{self._shown}A" if self._shown else ""
        text = "".join(f"\x1b[2K{line[:WIDTH]}\n" for line in lines)
        print(f"{up}{text}\x1b[J", end="", file=self._target, flush=True)
        self._shown = len(lines)

    @contextmanager
    def silent(self) -> Iterator[None]:
        """What is typed does not appear: it would break up a table."""
        before = termios.tcgetattr(self._source)
        quiet = termios.tcgetattr(self._source)
        quiet[3] &= ~termios.ECHO
        termios.tcsetattr(self._source, termios.TCSADRAIN, quiet)
        try:
            yield
        finally:
            termios.tcsetattr(self._source, termios.TCSADRAIN, before)

    def enter_within(self, seconds: float) -> bool:
        """Whether Enter was pressed; returns when it is, or after `seconds`."""
        if not select.select([self._source], [], [], seconds)[0]:
            return False
        self._read()
        return True

    def _read(self) -> str:
        # A signal that comes just before a blocking read is not acted on until the read returns.
        while not select.select([self._source], [], [], _AWAKE_S)[0]:
            pass
        line = self._source.readline()
        if not line:
            raise KeyboardInterrupt
        return line.strip()
