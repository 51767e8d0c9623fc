"""`policy-server models list|load|unload|replace`: tell a running server, over its admin socket, what to offer."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edge_runtime.errors import EdgeRuntimeError, StreamError, UsageError
from edge_runtime.program import flags
from edge_runtime.program.schema import hint

DEEDS = {"list": 0, "load": 1, "unload": 1, "replace": 1}  # and how many names each takes


@dataclass
class ModelsConfig:
    """`policy-server models list | load BUNDLE | replace BUNDLE | unload NAME`, then what the server offers."""

    words: list[str] = field(default_factory=list)  # as above
    admin_socket: Path | None = None  # of the running server
    force: bool = False  # unload a model although robots run it: their sessions end
    debug: bool = False  # tracebacks


def main(argv: list[str]) -> int:
    config = flags.parse(ModelsConfig, argv, prog="policy-server models", positional="words")
    deed, *names = config.words or [""]
    if deed and deed not in DEEDS:
        raise UsageError(f"models: no {deed!r}: {hint(deed, DEEDS)}")
    if not deed or len(names) != DEEDS[deed]:
        raise UsageError("models: expected list, load BUNDLE, replace BUNDLE or unload NAME")
    if config.admin_socket is None:
        raise UsageError("admin_socket is missing: --admin_socket=PATH, as the server was started with")
    name = names[0] if names else ""
    if deed != "unload" and Path(name).is_dir():
        name = str(Path(name).resolve())  # the server stands somewhere else
    for answer in ask(config.admin_socket, {"do": deed, "name": name, "force": config.force}):
        if "progress" in answer:
            print(answer["progress"], file=sys.stderr, flush=True)
        elif "error" in answer:
            error = EdgeRuntimeError(answer["error"])
            error.exit_code = answer["exit_code"]
            raise error
        else:
            print(table(answer["models"]))
            return 0
    raise StreamError(f"admin_socket: {config.admin_socket}: the server ended before it was done")


def ask(path: Path, question: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What the server at `path` answers, as it comes. Raises StreamError when there is none."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(path))
            connection.sendall(json.dumps(question).encode() + b"\n")
            with connection.makefile("rb") as lines:
                for line in lines:
                    yield json.loads(line)
        except OSError as error:
            why = "is not a socket" if path.exists() and not path.is_socket() else error.strerror or str(error)
            raise StreamError(f"admin_socket: {path}: {why.lower()}") from error


def table(models: list[dict[str, Any]]) -> str:
    """One line for each model, the default first."""
    rows = [("name", "type", "digest", "provider", "sessions", "")]
    rows += [
        (
            model["name"],
            model["type"],
            model["digest"][:12],
            model["provider"].removesuffix("ExecutionProvider"),
            str(model["sessions"]),
            "overloaded" if model["overloaded"] else "",
        )
        for model in models
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
