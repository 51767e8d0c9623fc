"""What went over the wire, in bytes of messages; gRPC's and the network's own headers come on top."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from google.protobuf.message import Message


@dataclass
class Traffic:
    """Counts of one run, over all its streams. Each field is written by one thread."""

    observations: int = 0
    observation_bytes: int = 0
    chunks: int = 0
    chunk_bytes: int = 0

    def sends(self, observation: Iterable[Message]) -> None:
        """An observation goes out, as these messages."""
        self.observations += 1
        self.observation_bytes += sum(message.ByteSize() for message in observation)

    def receives(self, chunk_bytes: int) -> None:
        """A chunk has come, of so many bytes."""
        self.chunks += 1
        self.chunk_bytes += chunk_bytes

    def as_dict(self) -> dict[str, int]:
        return asdict(self)
