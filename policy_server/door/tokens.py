"""Bearer tokens: every call shows one that is in the file, or is turned away before it is looked at."""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

import grpc

from edge_runtime.program import credentials
from policy_server.door.refusals import Refusals

log = logging.getLogger(__name__)

HEADER = "authorization"
SCHEME = "Bearer "


class Tokens(grpc.ServerInterceptor):  # type: ignore[misc]
    """Lets those calls through whose token is in the file. `refused` is told of each that is not."""

    def __init__(self, path: Path, refused: Refusals) -> None:
        """Raises ConfigError or AccessError: see `credentials.tokens`."""
        self._path = path
        self._refused = refused
        self._refusal = grpc.stream_stream_rpc_method_handler(self._refuse)  # waits for no message
        self._tokens = self._read()

    def reload(self) -> None:
        """Read the file again; streams that are open go on. Raises as the constructor does, and the old ones stay."""
        self._tokens = self._read()

    def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Any], details: grpc.HandlerCallDetails
    ) -> Any:
        return continuation(details) if self.is_known(_shown(details.invocation_metadata)) else self._refusal

    def name(self, context: grpc.ServicerContext) -> str:
        """What the token of a call that was let in is called: the first digits of its hash."""
        return self.called(_shown(context.invocation_metadata()))

    @staticmethod
    def called(token: bytes) -> str:
        """What a token that is known is called."""
        return f"token {hashlib.sha256(token).hexdigest()[:8]}"

    def is_known(self, token: bytes) -> bool:
        """Whether the file holds it."""
        found = False
        for known in self._tokens:  # all of them, each in a time that does not depend on where it differs
            found |= hmac.compare_digest(token, known)
        return found

    def _refuse(self, requests: Iterable[bytes], context: grpc.ServicerContext) -> NoReturn:
        self._refused(context.peer(), "token missing or wrong")
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "token missing or wrong")
        raise AssertionError("abort raises")

    def _read(self) -> tuple[bytes, ...]:
        found = credentials.tokens(self._path, "token_file")
        log.info("tokens: %d in %s", len(found), self._path)
        return tuple(token.encode() for token in found)


def _shown(metadata: Iterable[tuple[str, str | bytes]]) -> bytes:
    """The one token in a call's metadata; empty when there is none, or more than one."""
    shown = [value for name, value in metadata if name == HEADER]
    if len(shown) != 1 or not isinstance(shown[0], str) or not shown[0].startswith(SCHEME):
        return b""
    return shown[0].removeprefix(SCHEME).encode()
