"""What goes wrong in a soak: each fault, how it ends, and how soon the arm must be at work again after that."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scripts.rig.proxy import Link
from scripts.rig.soaking.stage import Stage

RESET_S = 1.0
BLACK_HOLE_S = 3.0
SAFE_START_S = 3.0  # a second of back-off, the checks, torque, and the first chunk

HEAT = {"fault": "register", "name": "Present_Temperature"}

Order = dict[str, Any]
Begin = Callable[[Stage, random.Random], None]
End = Callable[[Stage], None]


@dataclass(frozen=True)
class Fault:
    """`limit_s` is for the time from its end until the arm executes again, beyond that of one inference."""

    name: str
    begin: Begin
    end: End
    limit_s: float


def on_the_bus(name: str, order: Order, servos: tuple[int, int] = (0, 0), end: Order | None = None) -> Fault:
    """`order` for the virtual bus, to as many servos as `servos` allows (0 = all), until `end` or a `clear`."""

    def begin(stage: Stage, dice: random.Random) -> None:
        count = dice.randint(*servos)
        stage.bus(order | ({"ids": dice.sample(range(1, 7), count)} if count else {}))

    return Fault(name, begin, lambda stage: stage.bus(end or {"fault": "clear"}), SAFE_START_S)


def on_the_link(name: str, link: Link) -> Fault:
    """The line to the server is like `link`."""
    return Fault(
        name,
        lambda stage, dice: setattr(stage.link, "link", link),
        lambda stage: setattr(stage.link, "link", Link()),
        BLACK_HOLE_S,
    )


def at_once(name: str, act: End, limit_s: float) -> Fault:
    """Over as soon as it has happened."""
    return Fault(name, lambda stage, dice: act(stage), lambda stage: None, limit_s)


FAULTS = (
    Fault("server killed and restarted", lambda stage, dice: stage.kill_server(), Stage.restart_server, BLACK_HOLE_S),
    Fault("server stopped", lambda stage, dice: stage.stop_server(), Stage.wake_server, BLACK_HOLE_S),
    at_once("connection reset", lambda stage: stage.link.reset(), RESET_S),
    on_the_link("black hole", Link(black_hole=True)),
    on_the_link("300 ms ± 200 ms", Link(delay_s=0.1, jitter_s=0.4)),
    on_the_link("1 Mbit/s", Link(bytes_per_s=125_000)),
    on_the_bus("one servo silent", {"fault": "silent"}, (1, 1)),
    on_the_bus("several silent", {"fault": "silent"}, (2, 5)),
    on_the_bus("all silent", {"fault": "silent"}),
    on_the_bus("10 % corrupt", {"fault": "corrupt", "rate": 0.1}),
    on_the_bus("10 % cut short", {"fault": "truncate", "rate": 0.1}),
    on_the_bus("10 % late", {"fault": "late", "rate": 0.1, "delay_s": 0.02}),
    on_the_bus("10 % behind noise", {"fault": "junk", "rate": 0.1}),
    on_the_bus("overload flag", {"fault": "flags", "bits": "overload"}, (1, 2)),
    on_the_bus("servo too hot", {**HEAT, "value": 69}, (1, 1), {**HEAT, "value": 30}),
    on_the_bus("unplugged", {"fault": "unplug"}, end={"fault": "replug"}),
    on_the_bus("servo supply cut", {"fault": "power", "on": False}),
    on_the_bus("servo restarts", {"fault": "reboot"}, (1, 1)),
    Fault(
        "cameras stalled",
        lambda stage, dice: setattr(stage.view, "link", Link(black_hole=True)),
        lambda stage: setattr(stage.view, "link", Link()),
        BLACK_HOLE_S,
    ),
    at_once("cameras gone", lambda stage: stage.view.reset(), BLACK_HOLE_S),
)
