"""What one model has done so far: the counts and times that its metrics show."""

from __future__ import annotations

import threading
from collections import Counter

from edge_runtime.timing import SERVER_STAGES, StageTimes
from edge_runtime.wire.messages import Answer, Chunk, Skipped


class ModelStats:
    """Counted from several threads; read without a lock, number by number."""

    def __init__(self) -> None:
        self.stages = StageTimes(SERVER_STAGES)
        self.answers: Counter[str] = Counter()  # chunk, failure, or why it was skipped
        self.foreign: Counter[tuple[str, str]] = Counter()  # the same, by another wire than ours
        self.batches: Counter[int] = Counter()  # by size
        self.halved = 0
        self.busy_s = 0.0
        self._lock = threading.Lock()

    def answered(self, answer: Answer, finish_s: float, wire: str = "") -> None:
        """An answer goes out, encoded within `finish_s`; `wire` names a protocol that is not our own."""
        if isinstance(answer, Chunk):
            for stage in SERVER_STAGES[:-1]:
                self.stages.record(stage, getattr(answer.times, stage))
            self.stages.record(SERVER_STAGES[-1], finish_s)
        kind = "chunk" if isinstance(answer, Chunk) else answer.reason if isinstance(answer, Skipped) else "failure"
        with self._lock:
            if wire:
                self.foreign[wire, kind] += 1
            else:
                self.answers[kind] += 1

    def served(self, size: int, busy_s: float) -> None:
        """A batch of `size` kept the engine busy. Only the engine's thread says so, like `was_halved`."""
        self.batches[size] += 1
        self.busy_s += busy_s

    def was_halved(self) -> None:
        self.halved += 1
