"""What is already in the local Hugging Face cache; nothing is ever downloaded."""

from __future__ import annotations

import os
import re
from pathlib import Path

REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


def cached(name: str) -> Path | None:
    """The folder of the newest snapshot of `owner/repository` in the cache, or None."""
    if not REPOSITORY.fullmatch(name):
        return None
    repository = cache() / f"models--{name.replace('/', '--')}"
    try:
        revision = (repository / "refs" / "main").read_text().strip()
    except OSError:
        return None
    folder = repository / "snapshots" / revision
    return folder if folder.is_dir() else None


def cache() -> Path:
    """Where huggingface_hub keeps its files, by its own variables."""
    if hub := os.environ.get("HF_HUB_CACHE"):
        return Path(hub)
    return Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface")) / "hub"
