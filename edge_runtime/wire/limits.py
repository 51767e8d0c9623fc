"""What a peer may say at most: bounds on everything that arrives, and the checks that refuse the rest."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice

from edge_runtime.errors import ProtocolError

PIECE = 1 << 20  # bytes of a frame in one message: far below gRPC's 4 MB
NAME = 128  # characters of a name
SENTENCE = 2000  # characters of an error's message
TASK = 4096  # characters of the task text
DIGEST = 32  # bytes: sha256
JOINTS = 128
CAMERAS = 16
SIDE = 8192  # pixels of a frame's height or width
EXTRA_STATES = 16
DIMENSION = 65536  # numbers in one extra state
CHUNK = 4096  # rows
KINDS = 16  # of messages that a peer understands
POLICIES = 64
DESCRIPTION = 1 << 20  # bytes of what a server offers
TIMESTEP = 1 << 53  # leaves room to add a chunk's rows in an int64, and is exact in a double


def whole(what: str, value: int, low: int, high: int) -> int:
    """`value`, which must lie in low..high."""
    if not low <= value <= high:
        raise ProtocolError(f"{what}: {value} is not in {low}..{high}")
    return value


def number(what: str, value: float, low: float = 0.0, high: float = math.inf) -> float:
    """`value`, which must be finite and lie in low..high."""
    if not (math.isfinite(value) and low <= value <= high):
        raise ProtocolError(f"{what}: {value} is not a finite number in {low:g}..{high:g}")
    return value


def text(what: str, value: str, most: int = NAME) -> str:
    """`value`, which must be short and printable, since it ends up in logs and on terminals."""
    if len(value) > most or not value.isprintable():
        raise ProtocolError(f"{what}: {value[:40]!r} is not printable text of at most {most} characters")
    return value


def name(what: str, value: str) -> str:
    """`value`, which must be printable, short and not empty."""
    if not value:
        raise ProtocolError(f"{what}: is empty")
    return text(what, value)


def distinct(what: str, names: Iterable[str]) -> None:
    """Refuse a name that is said twice."""
    seen: set[str] = set()
    for each in names:
        if each in seen:
            raise ProtocolError(f"{what}: {each!r} is there twice")
        seen.add(each)


def listing(names: Iterable[str]) -> str:
    """Names for a sentence: the first few of however many there are."""
    shown = [sentence(each)[:NAME] for each in islice(names, CAMERAS)]
    return "[" + ", ".join(shown) + "]"


def sentence(message: str) -> str:
    """Any text as one printable line of at most `SENTENCE` characters; never refused, an error must get through."""
    line = "".join(c if c.isprintable() else " " for c in message[: 2 * SENTENCE])
    return " ".join(line.split())[:SENTENCE]
