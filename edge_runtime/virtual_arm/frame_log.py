"""What passed over the virtual bus: every frame with its time and its meaning."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from edge_runtime.motors.feetech import (
    BROADCAST,
    REGISTERS,
    Frame,
    Instruction,
    Register,
    decode,
    error_names,
)

Values = dict[int, dict[str, int]]


@dataclass(frozen=True)
class Entry:
    """A frame and when it passed, in seconds on the bus's clock. `request` is what a status answers."""

    time_s: float
    frame: Frame
    request: Frame | None = None

    @property
    def instruction(self) -> str:
        """PING, READ, WRITE, …, or STATUS."""
        if self.request is not None:
            return "STATUS"
        known = self.frame.code in Instruction.__members__.values()
        return Instruction(self.frame.code).name if known else f"INSTRUCTION {self.frame.code:#04x}"

    @property
    def flags(self) -> int:
        """The error byte of a status; 0 of an instruction."""
        return self.frame.code if self.request is not None else 0

    @cached_property
    def values(self) -> Values:
        """What the frame carries: id -> register -> value."""
        frame = self.frame
        if self.request is not None:
            asks_data = self.request.code in (Instruction.READ, Instruction.SYNC_READ)
            return {frame.servo: _values(self.request.parameters[0], frame.parameters) if asks_data else {}}
        if frame.code in (Instruction.WRITE, Instruction.REG_WRITE) and frame.parameters:
            return {frame.servo: _values(frame.parameters[0], frame.parameters[1:])}
        if frame.code == Instruction.SYNC_WRITE and len(frame.parameters) > 1:
            return {servo: _values(frame.parameters[0], data) for servo, data in sync_rows(frame.parameters)}
        return {}

    @cached_property
    def registers(self) -> tuple[str, ...]:
        """The registers that are read or written."""
        source = self.request or self.frame
        parameters = source.parameters
        if source.code in (Instruction.READ, Instruction.SYNC_READ) and len(parameters) > 1:
            return tuple(_covered(parameters[0], parameters[1]))
        return tuple(dict.fromkeys(name for values in self.values.values() for name in values))

    def __str__(self) -> str:
        who = "all" if self.frame.servo == BROADCAST else f"{self.frame.servo}"
        words = [f"{self.time_s:.6f}", self.instruction, who, *self.registers]
        words += [f"{servo}={value}" for servo, values in self.values.items() for value in values.values()]
        return " ".join(words + ([error_names(self.flags)] if self.flags else []))


class FrameLog:
    """The last `size` entries, oldest first; threads may wait for what will come."""

    def __init__(self, size: int) -> None:
        self._changed = threading.Condition()
        self._entries: deque[Entry] = deque(maxlen=size)

    def add(self, entry: Entry) -> None:
        with self._changed:
            self._entries.append(entry)
            self._changed.notify_all()

    def clear(self) -> None:
        with self._changed:
            self._entries.clear()

    def __iter__(self) -> Iterator[Entry]:
        with self._changed:
            return iter(list(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def writes(self, register: str) -> list[Entry]:
        """The instructions that write `register`."""
        return [entry for entry in self if entry.request is None and "WRITE" in entry.instruction
                and register in entry.registers]  # fmt: skip

    def wait_for(self, wanted: Callable[[Entry], bool], timeout_s: float) -> Entry:
        """The first entry that is `wanted`, here or to come; TimeoutError after `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: any(map(wanted, self._entries)), timeout_s)
            for entry in self._entries:
                if wanted(entry):
                    return entry
        raise TimeoutError(f"no such frame within {timeout_s:g} s")


def sync_rows(parameters: bytes) -> Iterator[tuple[int, bytes]]:
    """The (id, data) of a SYNC_WRITE's parameters; a row that is cut short is left out."""
    width = parameters[1] + 1
    for start in range(2, len(parameters) - width + 1, width):
        yield parameters[start], parameters[start + 1 : start + width]


def _covered(address: int, count: int) -> dict[str, Register]:
    """The registers that lie wholly in `count` bytes from `address`."""
    return {
        name: register
        for name, register in REGISTERS.items()
        if address <= register.address and register.address + register.size <= address + count
    }


def _values(address: int, data: bytes) -> dict[str, int]:
    return {
        name: decode(name, data[register.address - address : register.address - address + register.size])
        for name, register in _covered(address, len(data)).items()
    }
