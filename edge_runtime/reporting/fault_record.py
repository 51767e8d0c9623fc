"""The ticks before a fault, in a file: written when it happens, read by `edge-runtime replay-fault`."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from edge_runtime.errors import ConfigError, OutputError
from edge_runtime.program import files, schema
from edge_runtime.program.flags import one_line
from edge_runtime.program.schema import Items, NotFinite, Printable, Range, shown

KEPT_S = 10.0
MOST_FILES = 20  # the oldest goes: an arm that fails all night must not fill the disk
Whole = Annotated[int, Range(-(1 << 63), (1 << 63) - 1)]
Number = Annotated[float, NotFinite()]
Word = Annotated[str, Printable(128, 0)]


@dataclass(frozen=True)
class Tick:
    """One of `ActuatorLoop.recent_ticks`: times in ns, goals and positions in joint units."""

    time_ns: Whole
    timestep: Whole
    outcome: Word
    answered: Whole  # joints
    late_ns: Whole
    read_ns: Whole
    write_ns: Whole
    action_age_ns: Whole
    positions: list[Number]
    goal: list[Number]


@dataclass(frozen=True)
class JointReport:
    """What the bus knew of a joint; what the robot does not tell is None."""

    id: Whole | None = None
    misses: Whole = 0
    errors: Word = ""
    voltage: Number | None = None
    temperature: Number | None = None  # degrees Celsius
    load: Number | None = None
    current: Number | None = None  # amperes


@dataclass(frozen=True)
class FaultRecord:
    """What a fault looked like. `ticks` are oldest first; `bus` is the robot's report."""

    error: str
    time: str  # ISO 8601, local
    control_hz: float
    joints: Annotated[list[Word], Items(1)]
    units: list[Word]
    states: list[tuple[float, Word]]  # seconds since the start
    bus: dict[str, Any]
    ticks: list[Tick] = field(repr=False)
    format: Literal[1] = 1

    def save(self, folder: Path) -> Path:
        """Write it into `folder`, named for its time; its path. OutputError."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            old = sorted(folder.glob("fault-*.json"))
            for path in old[: max(len(old) - MOST_FILES + 1, 0)]:
                path.unlink(missing_ok=True)
                path.with_suffix(".png").unlink(missing_ok=True)
            path = folder / f"fault-{self.time.replace(':', '')}.json"
            path.write_text(json.dumps(asdict(replace(self, error=one_line(self.error)))) + "\n", encoding="utf-8")
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
        try:
            record: FaultRecord = schema.build_document(cls, content)
            record.check_lengths()
            record.reports()
        except ConfigError as error:
            raise ConfigError(f"file: {path} is not the record of a fault: {error}") from error
        return replace(record, error=one_line(record.error))  # it may quote what a peer said

    def reports(self) -> dict[str, JointReport]:
        """By joint, what we know to show of `bus`; ConfigError where it is not what it should be."""
        known = {each.name for each in fields(JointReport)}
        joints = schema.build(dict[str, dict[str, Any]], self.bus.get("joints", {}), "bus.joints", document=True)
        return {
            joint: schema.build(
                JointReport, {name: told[name] for name in known & told.keys()}, f"bus.joints.{joint}", document=True
            )
            for joint, told in joints.items()
        }

    def check_lengths(self) -> None:
        """ConfigError unless each list has a place for each joint."""
        lists: dict[str, Sequence[object]] = {"units": self.units}
        for index, tick in enumerate(self.ticks):
            lists |= {f"ticks[{index}].goal": tick.goal, f"ticks[{index}].positions": tick.positions}
        for name, values in lists.items():
            if len(values) != len(self.joints):
                raise ConfigError(f"{name}: {shown(values)} is not a list of {len(self.joints)}, one for each joint")


def default_folder() -> Path:
    """Where a program keeps its state: of the service if it is one, else of the user."""
    if folder := os.environ.get("STATE_DIRECTORY"):
        return Path(folder.partition(":")[0])
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "edge-runtime"
