"""`edge-runtime` and `python -m edge_runtime`."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """The entry point. Ctrl-C while all the rest is imported just ends the program."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # not where Ctrl-C is for others, as in a script's background job
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from edge_runtime import cli

    signal.signal(signal.SIGINT, handler)
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
