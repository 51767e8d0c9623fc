"""`edge-runtime top`: a robot that runs, as it moves, from its metrics port; from elsewhere through `ssh -L`."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Annotated

from edge_runtime.errors import StreamError
from edge_runtime.program import extras, flags
from edge_runtime.program.schema import Range, check_address, check_fields

PATIENCE_S = 5.0


@dataclass
class TopConfig:
    """`edge-runtime top`: draw what `edge-runtime start --metrics_port=9464` tells, until Ctrl-C or its end.

    From another machine: ssh -N -L 9464:127.0.0.1:9464 ROBOT, then `edge-runtime top` here.
    """

    url: str = "http://127.0.0.1:9464/metrics"  # the robot's metrics
    every_s: Annotated[float, Range(0.05, 60)] = 0.25  # between two looks
    frames: Annotated[int, Range(0)] = 0  # draw so often, then end; 0 = for ever
    debug: bool = False  # tracebacks

    def __post_init__(self) -> None:
        check_address(self.url, "url")
        check_fields(self)


def main(argv: list[str]) -> int:
    config = flags.parse(TopConfig, argv, prog="edge-runtime top")
    extras.require("top", ("rich", "prometheus_client"), "top")
    from rich.console import Console
    from rich.live import Live

    from edge_runtime.tools.top.history import History
    from edge_runtime.tools.top.reading import read
    from edge_runtime.tools.top.screen import draw

    history = History()
    history.add(read(config.url))  # what is wrong with the address is said before the screen is taken
    pause, missed_s, drawn = threading.Event(), 0.0, 1
    console = Console()  # elsewhere than on a terminal only the last look is printed
    with Live(draw(history, config.url), console=console, auto_refresh=False, screen=console.is_terminal) as live:
        while not config.frames or drawn < config.frames:
            pause.wait(config.every_s)
            try:
                history.add(read(config.url))
                missed_s = 0.0
            except StreamError as error:
                missed_s += config.every_s
                history.trouble = str(error)
                if missed_s >= PATIENCE_S:
                    raise
            live.update(draw(history, config.url), refresh=True)
            drawn += 1
    return 0
