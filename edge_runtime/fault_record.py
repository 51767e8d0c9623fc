"""The ticks before a fault, in a file: written when it happens, read by `edge-runtime replay-fault`."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from edge_runtime import json_file
from edge_runtime.errors import ConfigError, OutputError

KEPT_S = 10.0
MOST_FILES = 20  # the oldest goes: an arm that fails all night must not fill the disk
FORMAT = 1


@dataclass(frozen=True)
class FaultRecord:
    """What a fault looked like. `ticks` are `ActuatorLoop.recent_ticks`, oldest first; `bus` is the robot's report."""

    error: str
    time: str  # ISO 8601, local
    control_hz: float
    joints: list[str]
    units: list[str]
    states: list[tuple[float, str]]  # seconds since the start
    bus: dict[str, Any]
    ticks: list[dict[str, Any]] = field(repr=False)
    format: int = FORMAT

    def save(self, folder: Path) -> Path:
        """Write it into `folder`, named for its time; its path. OutputError."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            old = sorted(folder.glob("fault-*.json"))
            for path in old[: max(len(old) - MOST_FILES + 1, 0)]:
                path.unlink(missing_ok=True)
                path.with_suffix(".png").unlink(missing_ok=True)
            path = folder / f"fault-{self.time.replace(':', '')}.json"
            path.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")
        except OSError as error:
            raise OutputError(f"fault_folder: cannot write into {folder}: {error.strerror}") from error
        return path

    @classmethod
    def load(cls, path: Path) -> FaultRecord:
        """Raises ConfigError for a file that is not one."""
        try:
            content = json_file.read(path)
        except ValueError as error:
            raise ConfigError(f"file: {path} {error}") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ConfigError(f"file: {path} is not the record of a fault in format {FORMAT}")
        try:
            return cls(**content)
        except TypeError as error:
            raise ConfigError(f"file: {path} is not the whole record of a fault: {error}") from error


def default_folder() -> Path:
    """Where a program keeps its state: of the service if it is one, else of the user."""
    if folder := os.environ.get("STATE_DIRECTORY"):
        return Path(folder.partition(":")[0])
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "edge-runtime"
