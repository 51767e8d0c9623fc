"""Models listed, loaded, unloaded and replaced while the server runs, over a Unix socket that only its owner may use.

A connection carries one question and its answer, JSON objects, one a line:

    -> {"do": "list" | "load" | "replace" | "unload", "name": "a folder, a shipped bundle or a model", "force": false}
    <- {"progress": "..."}                         any number of times
    <- {"models": [...]}                           or {"error": "...", "exit_code": 65}
"""

from __future__ import annotations

import errno
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from edge_runtime.errors import EdgeRuntimeError, OutputError, ProtocolError
from policy_server.door.address import refuse_taken
from policy_server.serving.models import Models

log = logging.getLogger(__name__)

QUESTION_S = 10.0  # to ask, once connected
QUESTION_BYTES = 1 << 16
AGAIN_S = 0.5  # after a connection that could not be taken, as for want of descriptors


class Admin:
    """Answers on `path` from entering to leaving; each connection has a thread, since loading takes its time."""

    def __init__(self, path: Path, models: Models) -> None:
        self._path = path
        self._models = models
        self._closing = ExitStack()

    def __enter__(self) -> Admin:
        """Raises OutputError when the socket cannot be had."""
        refuse_taken(self._path, f"admin_socket: {self._path}")
        listening = self._closing.enter_context(socket.socket(socket.AF_UNIX))
        mask = os.umask(0o177)  # mode 0600 from the start, not after a moment
        try:
            self._path.unlink(missing_ok=True)
            listening.bind(str(self._path))
        except OSError as error:
            self._closing.close()
            raise OutputError(f"admin_socket: {self._path}: {(error.strerror or str(error)).lower()}") from error
        finally:
            os.umask(mask)
        self._closing.callback(self._path.unlink, missing_ok=True)
        self._closing.callback(listening.shutdown, socket.SHUT_RDWR)  # wakes the thread that accepts
        listening.listen()
        threading.Thread(target=self._accept, args=(listening,), name="admin", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError as error:
                if error.errno in (errno.EBADF, errno.EINVAL):  # closed
                    return
                log.warning("admin: a connection could not be taken: %s", error.strerror)
                time.sleep(AGAIN_S)
                continue
            try:
                threading.Thread(target=self._converse, args=(connection,), name="admin", daemon=True).start()
            except RuntimeError as error:  # no thread is to be had; there may be one for the next
                connection.close()
                log.warning("admin: a connection could not be served: %s", error)

    def _converse(self, connection: socket.socket) -> None:
        def say(**fact: object) -> None:
            with suppress(OSError):  # who asked may have left; what was asked is done all the same
                connection.sendall(json.dumps(fact).encode() + b"\n")

        with connection:
            connection.settimeout(QUESTION_S)
            try:
                question = _read_question(connection)
                say(models=self._do(question, lambda line: say(progress=line)))
            except EdgeRuntimeError as error:
                say(error=str(error), exit_code=error.exit_code)
            except Exception:
                error_id = secrets.token_hex(4)
                log.exception("admin: failed (id %s)", error_id)
                say(error=f"the server failed (id {error_id})", exit_code=EdgeRuntimeError.exit_code)

    def _do(self, question: dict[str, Any], say: Callable[[str], None]) -> list[dict[str, Any]]:
        what, name = question.get("do"), question.get("name", "")
        if what in ("load", "replace", "unload") and not (name and isinstance(name, str)):
            raise ProtocolError(f"admin: {what}: name: {name!r} is not a name")
        match what:
            case "list":
                pass
            case "load":
                self._models.load(name, say)
            case "replace":
                self._models.replace(name, say)
            case "unload":
                self._models.unload(name, force=question.get("force") is True)
            case _:
                raise ProtocolError(f"admin: do: {what!r} is not one of [list, load, replace, unload]")
        return [
            {
                "name": model.name,
                "type": model.policy.type,
                "digest": model.policy.digest.hex(),
                "provider": model.scheduler.provider,
                "sessions": model.sessions,
                "overloaded": model.overloaded,
            }
            for model in self._models
        ]


def _read_question(connection: socket.socket) -> dict[str, Any]:
    try:
        with connection.makefile("rb") as stream:
            question = json.loads(stream.readline(QUESTION_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise ProtocolError(f"admin: no question ({error})") from error
    if not isinstance(question, dict):
        raise ProtocolError("admin: the question is not a JSON object")
    return question
