"""Episodes behind a URL: POST places the scene and answers when it is ready, GET says how the episode goes."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from edge_runtime.errors import ConfigError, DeviceError

RESET_S = 30.0
ASK_S = 2.0
POLL_S = 0.05


@dataclass(frozen=True)
class Outcome:
    """How an episode ended, in the words of the one who judges it."""

    seed: int
    success: bool
    lifted: bool
    time_s: float


class Episodes:
    """The judge at `url`: {"seed": i} starts one, `done` ends it."""

    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"reset_url: {url!r} is not an http:// address")
        self._url = url

    def reset(self, seed: int) -> None:
        """Place the scene of `seed`; returns when it is ready. Raises DeviceError."""
        self._ask("POST", RESET_S, json.dumps({"seed": seed}).encode())

    def wait(self, stop: threading.Event) -> Outcome | None:
        """The outcome of the running episode, or None once `stop` is set."""
        while not stop.wait(POLL_S):
            report = self._ask("GET", ASK_S)
            if report.get("done"):
                return Outcome(
                    seed=int(report["seed"]),
                    success=bool(report.get("success")),
                    lifted=bool(report.get("lifted")),
                    time_s=float(report.get("time_s", 0.0)),
                )
        return None

    def _ask(self, method: str, timeout_s: float, body: bytes | None = None) -> dict[str, Any]:
        request = urllib.request.Request(
            self._url, data=body, method=method, headers={"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as response:
                report = json.load(response)
        except (OSError, ValueError) as error:
            raise DeviceError(f"reset_url: {method} {self._url} failed: {error}") from error
        if not isinstance(report, dict):
            raise DeviceError(f"reset_url: {method} {self._url} answered no JSON object")
        return report
