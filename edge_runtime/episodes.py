"""Episodes behind a URL: POST places the scene and answers when it is ready, GET says how the episode goes."""

from __future__ import annotations

import http.client
import json
import logging
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from edge_runtime._realtime import ActuatorLoop, Record
from edge_runtime.errors import DeviceError
from edge_runtime.planning.planner import Planner
from edge_runtime.program import direct
from edge_runtime.program.schema import check_address
from edge_runtime.reporting.run_stats import RunStats

log = logging.getLogger(__name__)

RESET_S = 30.0
ASK_S = 2.0
POLL_S = 0.05
_MOST_BYTES = 64 * 1024


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
        check_address(url, "reset_url")
        self._url = url

    def reset(self, seed: int) -> None:
        """Place the scene of `seed`; returns when it is ready. Raises DeviceError."""
        self._ask("POST", RESET_S, json.dumps({"seed": seed}).encode())

    def wait(self, stop: threading.Event) -> Outcome | None:
        """The outcome of the running episode, or None once `stop` is set."""
        while not stop.wait(POLL_S):
            report = self._ask("GET", ASK_S)
            if report.get("done"):
                return self._outcome(report)
        return None

    def _outcome(self, report: dict[str, Any]) -> Outcome:
        try:
            return Outcome(
                seed=int(report["seed"]),
                success=bool(report.get("success")),
                lifted=bool(report.get("lifted")),
                time_s=float(report.get("time_s", 0.0)),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DeviceError(f"reset_url: GET {self._url} answers no outcome with seed and time_s") from error

    def _ask(self, method: str, timeout_s: float, body: bytes | None = None) -> dict[str, Any]:
        request = urllib.request.Request(
            self._url, data=body, method=method, headers={"Content-Type": "application/json"}
        )
        try:
            with direct.urlopen(request, timeout_s) as response:
                report = json.loads(response.read(_MOST_BYTES))
        except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
            raise DeviceError(f"reset_url: {method} {self._url} failed: {error}") from error
        if not isinstance(report, dict):
            raise DeviceError(f"reset_url: {method} {self._url} answered no JSON object")
        return report


class EpisodeSeries:
    """Runs one episode after the other, and counts the ticks that starve once an episode has had its first chunk.

    Between episodes the loop pauses: nothing is written while the scene is placed, then the present position is the
    goal, the ring is empty and the timestep 0.
    """

    def __init__(self, judge: Episodes, loop: ActuatorLoop, planner: Planner, stats: RunStats) -> None:
        self._judge = judge
        self._loop = loop
        self._planner = planner
        self._stats = stats
        self._merges_before: int | None = None  # merges until the episode began; None once its first chunk was seen
        self._starved_before = 0  # starved ticks until that chunk was there

    def run(self, seeds: Iterable[int], stop: threading.Event) -> None:
        """Returns after the last episode, or once `stop` is set. Outcomes go to the stats. Raises DeviceError."""
        for number, seed in enumerate(seeds):
            self._stats.episode = number
            self._loop.pause()
            try:
                self._judge.reset(seed)
            except DeviceError:
                if stop.is_set():  # the run's end may have ended the judge first
                    return
                raise
            self._planner.new_episode()
            starved_before = self._starved
            self._merges_before = self._planner.merges
            self._loop.resume()
            outcome = self._judge.wait(stop)
            if outcome is None:
                return
            log.info("episode with seed %d: %s", seed, "success" if outcome.success else "no success")
            starved = self._starved
            waiting = self._merges_before is not None  # no chunk ever came
            self._stats.episodes.append(
                {
                    **asdict(outcome),
                    "starved": starved - starved_before,
                    "starved_after_first_chunk": 0 if waiting else starved - self._starved_before,
                }
            )

    def see(self, record: Record, stats: RunStats) -> None:
        if self._merges_before is not None and record.merges > self._merges_before and record.level > 0:
            self._starved_before, self._merges_before = self._starved, None

    @property
    def _starved(self) -> int:
        return self._loop.counters()["starved"]
