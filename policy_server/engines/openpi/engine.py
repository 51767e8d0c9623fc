"""A policy behind somebody else's openpi server: asked over a WebSocket, one observation at a time."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import socket
import ssl
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_runtime.errors import ConfigError, ModelError, ProtocolError, UsageError
from edge_runtime.program import credentials
from edge_runtime.program.schema import split_address
from edge_runtime.wire import limits
from edge_runtime.wire.messages import Floats
from policy_server.bundle import TASK, features
from policy_server.engines import Batch
from policy_server.engines.openpi import layout, messages
from policy_server.engines.openpi.config import OpenpiConfig
from policy_server.engines.openpi.layout import Layout
from policy_server.engines.providers import Runtime

log = logging.getLogger(__name__)

SCHEMES = {"openpi://": "ws://", "openpis://": "wss://"}
WARM_UP_S = 300.0  # a server that compiles at its first observation
CONNECT_S = 5.0
CLOSE_S = 1.0


def is_openpi(name: str) -> bool:
    """Whether `name` is the address of an openpi server."""
    return name.startswith(tuple(SCHEMES))


class OpenpiPolicy:
    """What `openpi://HOST:PORT` means: described by the map, and not yet connected."""

    n_obs_steps = 1
    batched = False

    def __init__(self, name: str, file: Path | None, config: OpenpiConfig, *, insecure: bool = False) -> None:
        """Raises UsageError without a map, ConfigError for an address, a map or a key that cannot be.

        A key goes to another machine without TLS only if `insecure`.
        """
        scheme, _, address = name.partition("://")
        host, _ = split_address(address, f"bundles: {scheme}")
        if not host:
            raise ConfigError(f"bundles: {name} is not {scheme}://HOST:PORT")
        if file is None:
            raise UsageError(
                f"map: is missing, and {name} needs it: --map=FILE says what its messages hold (docs/openpi.md)"
            )
        messages.check_installed()
        self.path = name
        self._url = SCHEMES[f"{scheme}://"] + address
        self._map = layout.read(file)
        self._key = ""
        if config.api_key_file is not None:
            if scheme == "openpi" and not insecure and not _is_here(host):
                raise ConfigError(
                    f"openpi.api_key_file: {name} has no TLS, and the key would be readable on the way; "
                    f"openpis://{address} has, --insecure=true does without"
                )
            self._key = credentials.tokens(config.api_key_file, "openpi.api_key_file")[0]
        self._answer_s = config.answer_s
        try:
            self.policy = self._map.policy()
            self._layout = Layout(self._map, self.policy, writes=True)
        except ConfigError as error:
            raise ConfigError(f"{layout.SETTING}: {file}: {str(error).removeprefix('map: ')}") from error

    def open(self, runtime: Runtime) -> OpenpiEngine:
        return OpenpiEngine(
            self, Upstream(self.path, self._url, self._key), self._layout, self._map.actions, self._answer_s
        )


class Upstream:
    """A connection in lock step, made when it is needed and made anew when it broke."""

    def __init__(self, name: str, url: str, key: str) -> None:
        self._name, self._url = name, url
        self._headers = {"Authorization": f"Api-Key {key}"} if key else None
        self._connection: Any = None
        self._open = contextlib.ExitStack()

    def ask(self, question: bytes, limit_s: float) -> str | bytes:
        """The answer, a text if it is an error's. Raises ModelError when there is none within `limit_s`.

        A connection that was open before and is found closed costs one more try, not the observation.
        """
        from websockets.exceptions import ConnectionClosed

        for was_open in (self._connection is not None, False):
            connection = self._connected(limit_s)
            try:
                self._check_silent(connection)
                connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(limit_s))
                connection.send(question)
                answer: str | bytes = connection.recv(limit_s)
                return answer
            except TimeoutError as error:
                self.drop()
                raise ModelError(f"{self._name}: no answer within {limit_s:g} s") from error
            except (ConnectionClosed, OSError) as error:
                self.drop()
                if not was_open:
                    raise ModelError(f"{self._name}: the connection ended: {limits.sentence(str(error))}") from error
        raise AssertionError("the second try returns or raises")

    def drop(self) -> None:
        """End the connection at once: what still comes on it would be taken for the next answer."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.socket.shutdown(socket.SHUT_RDWR)
            self._open.close()

    def _connected(self, limit_s: float) -> Any:
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        if self._connection is not None:
            return self._connection
        try:
            connecting = connect(
                self._url,
                additional_headers=self._headers,
                ssl=ssl.create_default_context() if self._url.startswith("wss:") else None,
                compression=None,
                max_size=messages.MOST_BYTES,
                max_queue=1,
                open_timeout=min(CONNECT_S, limit_s),
                ping_interval=None,  # openpi's server answers no ping while its policy computes
                close_timeout=CLOSE_S,
                proxy=None,
            )
            self._connection = self._open.enter_context(connecting)
            greeting = self._connection.recv(min(CONNECT_S, limit_s))
        except (OSError, EOFError, WebSocketException) as error:
            self.drop()
            said = limits.sentence(str(error)) or type(error).__name__
            raise ModelError(f"{self._name}: cannot be reached: {said}") from error
        self._greet(greeting)
        return self._connection

    def _greet(self, greeting: str | bytes) -> None:
        """The server speaks first, of itself; its words go to the log alone."""
        try:
            told = greeting if isinstance(greeting, str) else messages.unpack(greeting)
            if not isinstance(told, dict):
                raise ProtocolError(f"it begins with {limits.sentence(str(told))[:100]!r}, and not with its metadata")
        except ProtocolError as error:
            self.drop()
            raise ModelError(f"{self._name}: is no openpi server: {error}") from error
        log.info("%s: connected (metadata: %s)", self._name, limits.listing(str(key) for key in told))

    def _check_silent(self, connection: Any) -> None:
        """Raises ConnectionClosed, or ModelError when the server said something without being asked."""
        try:
            unasked = connection.recv(0)
        except TimeoutError:
            return
        self.drop()
        said = f": {last_line(unasked)}" if isinstance(unasked, str) else ""
        raise ModelError(f"{self._name}: spoke without being asked{said}")


class OpenpiEngine:
    """Asks the upstream for each member of a batch in turn."""

    provider = "openpi"

    def __init__(self, source: OpenpiPolicy, upstream: Upstream, layout: Layout, actions: str, answer_s: float) -> None:
        self._name, self._policy = source.path, source.policy
        self._upstream, self._layout = upstream, layout
        self._key, self._answer_s = actions, answer_s

    def __del__(self) -> None:
        self._upstream.drop()

    def infer(self, batch: Batch) -> Floats:
        """Raises ModelError, which begins with the server's address."""
        return self._infer(batch, self._answer_s)

    def warm_up(self, batch_sizes: Sequence[int], progress: Callable[[str], None]) -> None:
        """Ask once, on zeros. Raises ModelError when the answer does not fit the map."""
        progress(f"waiting for {self._name}")
        batch: dict[str, Any] = {
            name: np.zeros((1, *feature.shape), feature.dtype) for name, feature in features(self._policy).items()
        }
        self._infer(batch | {TASK: np.array([""])}, max(WARM_UP_S, self._answer_s))

    def _infer(self, batch: Batch, limit_s: float) -> Floats:
        size = len(next(iter(batch.values())))
        return np.stack(
            [self._ask({name: array[row] for name, array in batch.items()}, limit_s) for row in range(size)]
        )

    def _ask(self, inputs: dict[str, npt.NDArray[Any]], limit_s: float) -> Floats:
        answer = self._upstream.ask(messages.pack(self._layout.write(inputs)), limit_s)
        if isinstance(answer, str):
            raise ModelError(f"{self._name}: {last_line(answer)}")
        try:
            return self._actions(messages.unpack(answer))
        except ProtocolError as error:
            raise ModelError(f"{self._name}: {error}") from error

    def _actions(self, answer: Any) -> Floats:
        """The chunk in an answer. Raises ProtocolError when it holds none of the map's shape."""
        if not isinstance(answer, dict) or self._key not in answer:
            has = limits.listing(map(str, answer)) if isinstance(answer, dict) else type(answer).__name__
            raise ProtocolError(f"the answer has no {self._key!r}; it has {has}")
        actions = answer[self._key]
        expected = (self._policy.chunk_size, len(self._policy.joints))
        if not isinstance(actions, np.ndarray) or actions.dtype.kind not in "fiu" or actions.shape != expected:
            found = f"{actions.dtype} {actions.shape}" if isinstance(actions, np.ndarray) else type(actions).__name__
            raise ProtocolError(f"{self._key}: {found} is not {expected}, the map's chunk_size and joints")
        with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused as such
            narrow: Floats = actions.astype(np.float32)
        return narrow


def last_line(text: str) -> str:
    """Of a traceback, which openpi's server sends, the line that says what was wrong."""
    lines = [line for line in text.splitlines() if line.strip()]
    return limits.sentence(lines[-1])[:500] if lines else "an error without words"


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _timeval(seconds: float) -> bytes:
    return struct.pack("ll", int(seconds), round(seconds % 1 * 1e6))
