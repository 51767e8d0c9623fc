"""How a policy behind an openpi server is asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from edge_runtime.program.schema import Range, check_fields


@dataclass
class OpenpiConfig:
    """How a policy behind an openpi server is asked (`openpi://HOST:PORT`)."""

    api_key_file: Path | None = None  # the key that the server wants; only its owner may read the file
    answer_s: Annotated[float, Range(0.1, 3600)] = 10.0  # without an answer for so long, the observation has failed

    def __post_init__(self) -> None:
        check_fields(self, "openpi")
