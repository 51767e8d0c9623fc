"""Named numbers that are not joints, such as an environment state, read over HTTP as JSON."""

from __future__ import annotations

import http.client
import json
import math
import urllib.parse

import numpy as np

from edge_runtime.errors import ConfigError, DeviceError
from edge_runtime.wire.messages import Floats

_MOST_BYTES = 64 * 1024


class HttpVector:
    """A vector of numbers behind a URL, one GET on a kept connection each time it is read.

    The answer is a JSON list of numbers, or an object with such a list under `values`.
    """

    def __init__(self, name: str, url: str, timeout_s: float = 0.5) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ConfigError(f"extra_state.{name}: {url!r} is not an http://HOST:PORT/path address")
        self.name = name
        self.url = url
        self._path = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=timeout_s)

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
        except (ValueError, KeyError, TypeError) as error:
            raise DeviceError(f"extra_state.{self.name}: {self.url} answers no list of numbers") from error
        if vector.ndim != 1 or not all(map(math.isfinite, vector)):
            raise DeviceError(f"extra_state.{self.name}: {self.url} answers no list of finite numbers")
        return vector

    def close(self) -> None:
        self._connection.close()

    def _get(self) -> bytes:
        try:
            self._connection.request("GET", self._path)
            response = self._connection.getresponse()
            body = response.read(_MOST_BYTES)
            if response.status != 200:
                raise DeviceError(f"extra_state.{self.name}: {self.url} answers {response.status} {response.reason}")
            return body
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            self._connection.close()
            raise
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise DeviceError(f"extra_state.{self.name}: cannot read {self.url}: {error}") from error
