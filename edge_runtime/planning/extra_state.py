"""Named numbers that are not joints, such as an environment state: read over HTTP as JSON, or constant."""

from __future__ import annotations

import http.client
import json
import math
import time
import urllib.parse
from typing import Protocol

import numpy as np

from edge_runtime.errors import ConfigError, DeviceError
from edge_runtime.program.schema import check_address
from edge_runtime.wire.messages import Floats

CONSTANT = "constant:"

_MOST_BYTES = 64 * 1024


class NamedVector(Protocol):
    """What an extra state is read from; `name` is the setting's."""

    name: str

    def read(self) -> Floats: ...
    def close(self) -> None: ...


def make_vector(name: str, source: str) -> NamedVector:
    """The vector that the setting `extra_state.NAME` describes: an http URL, or `constant:1,2,3`."""
    return ConstantVector(name, source) if source.startswith(CONSTANT) else HttpVector(name, source)


class ConstantVector:
    """The same numbers each time, for what does not change or is not there."""

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        try:
            self._values = np.array([float(number) for number in source.removeprefix(CONSTANT).split(",")], np.float32)
        except ValueError as error:
            raise ConfigError(f"extra_state.{name}: {source!r} is not constant:1,2,3") from error
        if not np.isfinite(self._values).all():
            raise ConfigError(f"extra_state.{name}: {source!r} holds a number that is not finite")

    def read(self) -> Floats:
        """The numbers, (dimension,) float32."""
        return self._values

    def close(self) -> None:
        """There is nothing to close."""


class HttpVector:
    """A vector of numbers behind a URL, one GET on a kept connection each time it is read.

    The answer is a JSON list of numbers, or an object with such a list under `values`.
    """

    def __init__(self, name: str, url: str, timeout_s: float = 0.5) -> None:
        check_address(url, f"extra_state.{name}", ["http"])
        parts = urllib.parse.urlsplit(url)
        self.name = name
        self.url = url
        self._timeout_s = timeout_s
        self._path = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
        self._connection = http.client.HTTPConnection(str(parts.hostname), parts.port or 80, timeout=timeout_s)

    def read(self) -> Floats:
        """The numbers now, (dimension,) float32. Raises DeviceError when there are none to be had."""
        try:
            body = self._get()
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            body = self._get()  # a kept connection that the other side had closed in the meantime
        try:
            data = json.loads(body)
            values = data["values"] if isinstance(data, dict) else data
            vector = np.array(values, np.float32)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise DeviceError(f"extra_state.{self.name}: {self.url} answers no list of numbers") from error
        if vector.ndim != 1 or not all(map(math.isfinite, vector)):
            raise DeviceError(f"extra_state.{self.name}: {self.url} answers no list of finite numbers")
        return vector

    def close(self) -> None:
        self._connection.close()

    def _body(self, response: http.client.HTTPResponse) -> bytes:
        """All of it within the timeout, which the socket's own is for each piece."""
        until_s = time.monotonic() + self._timeout_s
        body = b""
        with response:
            while len(body) < _MOST_BYTES and (piece := response.read1(_MOST_BYTES)):
                body += piece
                if time.monotonic() > until_s:
                    raise TimeoutError(f"the answer takes more than {self._timeout_s:g} s")
        return body

    def _get(self) -> bytes:
        try:
            self._connection.request("GET", self._path)
            response = self._connection.getresponse()
            body = self._body(response)
            if response.status != 200:
                raise DeviceError(f"extra_state.{self.name}: {self.url} answers {response.status} {response.reason}")
            return body
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            self._connection.close()
            raise
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise DeviceError(f"extra_state.{self.name}: cannot read {self.url}: {error}") from error
