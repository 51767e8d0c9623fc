"""A stand-in for openpi's policy server, which is on no package index: its protocol, by openpi's own `msgpack_numpy`.

python -m scripts.rig.openpi_server --chunk=50 --joints=6     says its port; `block` and `go` on stdin hold its answers

Metadata first; then for each binary observation a binary answer with `actions` and `server_timing`; an exception is a
text frame with its traceback, after which the connection is closed; `GET /healthz` is answered with OK.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from openpi_client import msgpack_numpy
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve

from scripts.rig.bench import start

Infer = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass
class Standing:
    """A stand-in that serves: `seen` are the observations, `keys` the Authorization headers of its clients."""

    port: int
    server: Server
    seen: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    def drop(self) -> None:
        """End every connection, as a server that is started anew does."""
        for connection in self.server.connections:
            connection.close()


@contextmanager
def standing_in(infer: Infer, port: int = 0, metadata: Any = None) -> Iterator[Standing]:
    """A server that answers with what `infer` makes of an observation."""

    def handle(connection: ServerConnection) -> None:
        assert connection.request is not None
        standing.keys.append(connection.request.headers.get("Authorization", ""))
        packer = msgpack_numpy.Packer()
        try:
            connection.send(packer.pack({"reset_pose": [0.0]} if metadata is None else metadata))
            while True:
                observation = msgpack_numpy.unpackb(connection.recv())
                standing.seen.append(observation)
                try:
                    answer = packer.pack({"server_timing": {"infer_ms": 1.0}} | infer(observation))
                except Exception:
                    connection.send(traceback.format_exc())
                    connection.close(1011, "Internal server error. Traceback included in previous frame.")
                    raise
                connection.send(answer)
        except ConnectionClosed:
            return

    def answer_health(connection: ServerConnection, request: Any) -> Any:
        return connection.respond(200, "OK\n") if request.path == "/healthz" else None

    with serve(
        handle, "127.0.0.1", port, compression=None, max_size=None, process_request=answer_health, close_timeout=1
    ) as server:
        standing = Standing(server.socket.getsockname()[1], server)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield standing
        finally:
            server.shutdown()
            thread.join()


@dataclass
class StandInConfig:
    """`scripts.rig.openpi_server`: chunks of rows that each hold the row's number as every joint's goal."""

    chunk: int = 50
    joints: int = 6


def main(config: StandInConfig) -> None:
    may_answer = threading.Event()
    may_answer.set()

    def infer(observation: dict[str, Any]) -> dict[str, Any]:
        may_answer.wait()
        rows = np.arange(config.chunk, dtype=np.float64)[:, None]
        return {"actions": np.repeat(rows, config.joints, axis=1)}

    with standing_in(infer) as standing:
        print(standing.port, flush=True)
        for word in sys.stdin:
            (may_answer.clear if word.strip() == "block" else may_answer.set)()
        may_answer.set()


if __name__ == "__main__":
    start(StandInConfig, main)
