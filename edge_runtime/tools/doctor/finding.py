"""What was found out about one thing, and how it looks on a checklist."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Literal

from edge_runtime.errors import BusError, EdgeRuntimeError

State = Literal["ok", "warning", "failed", "skipped"]
MARKS: dict[State, str] = {"ok": "✓", "warning": "!", "failed": "✗", "skipped": "–"}
WIDTH = 80

_ABOUT = 14  # columns of the name


@dataclass(frozen=True)
class Finding:
    """`about` in a `group` of things is as `said`; `mend` is the command or action that puts it right.

    failed: `start` would refuse, or the arm would not do as told. warning: it would run, and worse than it could.
    """

    group: str
    about: str
    state: State
    said: str
    mend: str = ""
    exit_code: int = 0  # that `start` would end with

    def __str__(self) -> str:
        """Lines of at most WIDTH columns."""
        lead = f"  {MARKS[self.state]} {self.about:<{_ABOUT}}"
        lines = [_wrap(self.said, lead)]
        if self.mend:
            lines.append(_wrap(self.mend, " " * len(lead) + "→ "))
        return "\n".join(lines)


@dataclass(frozen=True)
class Group:
    """Makes the findings of one group."""

    name: str

    def ok(self, about: str, said: str) -> Finding:
        return Finding(self.name, about, "ok", said)

    def warning(self, about: str, said: str, mend: str) -> Finding:
        return Finding(self.name, about, "warning", said, mend)

    def skipped(self, about: str, said: str) -> Finding:
        return Finding(self.name, about, "skipped", said)

    def refused(self, about: str, error: BusError) -> Finding:
        """What `start` refuses by the same check, with the remedy that it names."""
        return Finding(self.name, about, "failed", error.fact, error.remedy, error.exit_code)

    def failed(self, about: str, error: EdgeRuntimeError, mend: str) -> Finding:
        return Finding(self.name, about, "failed", str(error), mend, error.exit_code)


def _wrap(text: str, lead: str) -> str:
    printable = "".join(letter if letter.isprintable() else " " for letter in text)  # a peer may have said it
    return textwrap.fill(
        printable,
        WIDTH,
        initial_indent=lead,
        subsequent_indent=" " * len(lead),
        break_long_words=False,  # a path that is broken cannot be copied
        break_on_hyphens=False,
    )
