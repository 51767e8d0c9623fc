"""The port of openpi's clients: WebSockets on one thread, their observations on others.

asyncio, since otherwise every connection that is opened would take a thread; gRPC's own port is not touched by it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from typing import Any

import grpc

from edge_runtime.errors import ConfigError, OutputError
from policy_server.config import ServerConfig
from policy_server.door.address import Address
from policy_server.door.admission import Fault
from policy_server.door.refusals import Refusals
from policy_server.door.tokens import Tokens
from policy_server.engines.openpi import messages
from policy_server.serving.openpi.service import OpenpiClient, OpenpiService

log = logging.getLogger(__name__)

_silent = logging.getLogger(f"{__name__}.websockets")
_silent.disabled = True  # strangers cause all of its lines; what matters is said here

CLOSE_S = 1.0  # for a client to say goodbye
_STATUS = {grpc.StatusCode.NOT_FOUND: 404, grpc.StatusCode.UNAVAILABLE: 503}
_TRY_AGAIN, _REFUSED, _ERROR = 1013, 1008, 1011  # WebSocket close codes
_REASON_BYTES = 120
_SCHEMES = ("Api-Key ", "Bearer ")


class OpenpiDoor:
    """Listens from `open` to `stop`. A client that sends an Origin is a browser, and is refused."""

    def __init__(self, config: ServerConfig, service: OpenpiService, tokens: Tokens | None, refused: Refusals) -> None:
        """Raises ConfigError beyond loopback unless `insecure`, or when the extra is not installed."""
        self._listen = Address.parse(config.openpi_listen, "openpi_listen")
        if self._listen.path is not None:
            raise ConfigError("openpi_listen: must be HOST:PORT, which is what openpi's client connects to")
        if not self._listen.is_local and not config.insecure:
            raise ConfigError(
                f"openpi_listen: {self._listen} can be reached from other machines, and has no TLS; "
                "--insecure=true does without"
            )
        messages.check_installed()
        self._service, self._tokens, self._refused = service, tokens, refused
        self._limits = config.limits
        self._socket: socket.socket | None = None
        self._pool = ThreadPoolExecutor(config.max_sessions, thread_name_prefix="openpi")
        self._connections = 0
        self._over: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="openpi", daemon=True)

    def open(self) -> str:
        """Bind; the address with the port that was got. Raises OutputError."""
        family = socket.AF_INET6 if ":" in self._listen.host else socket.AF_INET
        try:
            self._socket = socket.create_server((self._listen.host, self._listen.port), family=family)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise OutputError(f"openpi_listen: {self._listen}: {reason}") from error
        bound = Address(self._listen.host, self._socket.getsockname()[1])
        key = "with an API key" if self._tokens is not None else "without one"
        remark = "" if bound.is_local else f": other machines reach it without TLS, {key} (--insecure)"
        log.info("openpi's clients are served on %s%s", bound, remark)
        return str(bound)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End every connection; stopping twice, or a door that was never started, is harmless."""
        self._service.stop()
        if self._thread.ident is not None:
            with contextlib.suppress(InvalidStateError):
                self._over.set_result(None)
            self._thread.join()
        elif self._socket is not None:
            self._socket.close()
        self._pool.shutdown()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        from websockets.asyncio.server import ServerConnection, serve

        door = self

        class Counted(ServerConnection):  # type: ignore[misc, unused-ignore]
            """Counts connections from the first byte on, also those that never say what they want."""

            def connection_made(self, transport: Any) -> None:
                super().connection_made(transport)
                door._connections += 1
                if door._connections > door._limits.connections:
                    transport.abort()

            def connection_lost(self, error: Exception | None) -> None:
                door._connections -= 1
                super().connection_lost(error)

        async with serve(
            self._handle,
            sock=self._socket,
            create_connection=Counted,
            process_request=self._admit,
            origins=[None],
            compression=None,
            max_size=min(messages.MOST_BYTES, self._limits.observation_bytes),
            max_queue=1,
            open_timeout=self._limits.handshake_s,
            close_timeout=CLOSE_S,
            logger=_silent,
        ):
            await asyncio.wrap_future(self._over)

    def _admit(self, connection: Any, request: Any) -> Any:
        """An HTTP answer for a client that is refused, and for `GET /healthz`; None for one that is let in."""
        if request.path == "/healthz":
            warm = self._service.is_warm
            return connection.respond(200 if warm else 503, "OK\n" if warm else "warming up\n")
        shown = request.headers.get_all("Authorization")
        if self._tokens is not None and not self._tokens.is_known(_token(shown)):
            self._refused(_peer(connection), "token missing or wrong")
            return connection.respond(401, "API key missing or wrong\n")
        try:
            connection.model = self._service.model(request.path.strip("/"))
        except Fault as fault:
            self._refused(_peer(connection), str(fault))
            return connection.respond(_STATUS[fault.code], f"{fault}\n")
        connection.token = self._tokens.called(_token(shown)) if self._tokens is not None else ""
        return None

    async def _handle(self, connection: Any) -> None:
        """One connection, from its metadata to its end."""
        from websockets.exceptions import ConnectionClosed

        peer = _peer(connection)
        name = f"openpi's client at {peer.partition(':')[2]}"
        try:
            client = self._service.enter(connection.model, peer, name, connection.token)
        except Fault as fault:
            self._refused(peer, str(fault))
            await connection.close(_TRY_AGAIN, _short(str(fault)))
            return
        try:
            await self._send(connection, client.metadata)
            await self._answer(connection, client)
        except ConnectionClosed:
            pass
        except TimeoutError as error:
            self._refused(peer, str(error))
            await connection.close(_REFUSED, _short(str(error)))
        except Fault as fault:
            with contextlib.suppress(ConnectionClosed, TimeoutError):
                await self._send(connection, str(fault))
            await connection.close(_ERROR, _short(str(fault)))
        except Exception:
            log.exception("%s: answering failed", name)
            await connection.close(_ERROR, "the server failed")
        finally:
            self._service.leave(client)

    async def _answer(self, connection: Any, client: OpenpiClient) -> None:
        loop = asyncio.get_running_loop()
        idle_s = self._limits.idle_s or None
        while True:
            try:
                message = await asyncio.wait_for(connection.recv(), idle_s)
            except asyncio.TimeoutError:  # Python 3.10 has two of the name
                raise TimeoutError(f"nothing heard for {idle_s:g} s") from None
            await self._send(connection, await loop.run_in_executor(self._pool, client.answer, message))

    async def _send(self, connection: Any, answer: str | bytes) -> None:
        try:
            await asyncio.wait_for(connection.send(answer), self._limits.unfinished_s)
        except asyncio.TimeoutError:
            connection.transport.abort()
            raise TimeoutError("it does not read what it is sent") from None


def _peer(connection: Any) -> str:
    """In gRPC's form, which `Peers` and `Refusals` read."""
    host, port, *_ = connection.remote_address
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


def _token(shown: list[str]) -> bytes:
    """The one key in a request's headers; empty when there is none, or more than one."""
    if len(shown) == 1:
        for scheme in _SCHEMES:
            if shown[0].startswith(scheme):
                return shown[0].removeprefix(scheme).encode("utf-8", "replace")
    return b""


def _short(reason: str) -> str:
    """What fits into a close frame."""
    return reason.encode()[:_REASON_BYTES].decode(errors="ignore")
