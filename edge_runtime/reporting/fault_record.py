"""The ticks before a fault, in a file: written when it happens, read by `edge-runtime replay-fault`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from edge_runtime.errors import ConfigError, OutputError
from edge_runtime.program import files
from edge_runtime.program.flags import one_line
from edge_runtime.program.schema import shown

KEPT_S = 10.0
MOST_FILES = 20  # the oldest goes: an arm that fails all night must not fill the disk
FORMAT = 1
_WHOLE = ("time_ns", "timestep", "answered", "late_ns", "read_ns", "write_ns", "action_age_ns")  # of a tick


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
            content = files.read_json(path)
        except ValueError as error:
            raise ConfigError(f"file: {path} {error}") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ConfigError(f"file: {path} is not the record of a fault in format {FORMAT}")
        try:
            record = cls(**content)
            _check(record)
        except TypeError as error:
            raise ConfigError(f"file: {path} is not the whole record of a fault: {error}") from error
        except ValueError as error:
            raise ConfigError(f"file: {path} is not the record of a fault: {error}") from error
        return replace(record, error=one_line(record.error))  # it may quote what a peer said


def _check(record: FaultRecord) -> None:
    """Raises ValueError with the first field that is not as `save` writes it."""
    for name in ("error", "time"):
        _need(isinstance(getattr(record, name), str), name, getattr(record, name), "text")
    _need(_is_number(record.control_hz), "control_hz", record.control_hz, "a number")
    _need(_is_list(record.joints, _is_text) and bool(record.joints), "joints", record.joints, "a list of names")
    joints = len(record.joints)
    _need(_is_list(record.units, _is_text, joints), "units", record.units, f"a list of {joints} names")
    _need(_is_list(record.states, _is_state), "states", record.states, "a list of pairs of seconds and a state")
    _need(isinstance(record.bus, dict), "bus", record.bus, "an object")
    _need(isinstance(record.bus.get("joints", {}), dict), "bus.joints", record.bus.get("joints"), "an object")
    for joint, seen in record.bus.get("joints", {}).items():
        _need(isinstance(seen, dict), f"bus.joints.{joint}", seen, "an object")
        for name, value in seen.items():
            fits, expected = (_is_text, "text") if name == "errors" else (_is_number, "a number")
            _need(fits(value), f"bus.joints.{joint}.{name}", value, expected)
    _need(_is_list(record.ticks, lambda tick: isinstance(tick, dict)), "ticks", record.ticks, "a list of objects")
    for index, tick in enumerate(record.ticks):
        for name in ("goal", "positions"):
            value = tick.get(name)
            _need(_is_list(value, _is_number, joints), f"ticks[{index}].{name}", value, f"a list of {joints} numbers")
        for name in _WHOLE:
            _need(_is_whole(tick.get(name)), f"ticks[{index}].{name}", tick.get(name), "a whole number")
        _need(_is_text(tick.get("outcome")), f"ticks[{index}].outcome", tick.get("outcome"), "a word")


def _need(fits: bool, where: str, value: object, expected: str) -> None:
    if not fits:
        raise ValueError(f"{where}: {shown(value)} is not {expected}")


def _is_list(value: object, fits: Callable[[Any], bool], length: int | None = None) -> bool:
    return isinstance(value, list) and length in (None, len(value)) and all(map(fits, value))


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value.isprintable()


def _is_whole(value: object) -> bool:
    return type(value) is int and abs(value) < 1 << 63


def _is_number(value: object) -> bool:
    return isinstance(value, float) or _is_whole(value)


def _is_state(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and _is_number(value[0]) and _is_text(value[1])


def default_folder() -> Path:
    """Where a program keeps its state: of the service if it is one, else of the user."""
    if folder := os.environ.get("STATE_DIRECTORY"):
        return Path(folder.partition(":")[0])
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "edge-runtime"
