"""Where a LeRobot checkpoint is that a user names: a folder, the folder of a training run, or the local hub cache."""

from __future__ import annotations

import contextlib
from pathlib import Path

from edge_runtime.errors import UsageError
from policy_server.bundle import MANIFEST
from policy_server.engines.hub import REPOSITORY, cached

CONFIG = "config.json"
BELOW = (".", "pretrained_model", "checkpoints/last/pretrained_model")  # as lerobot-train lays them out
LAYOUT = ("pretrained_model", "last", "checkpoints")


def find(name: str) -> Path | None:
    """The folder with the `config.json` that `name` means; None for a bundle, and for what is no checkpoint."""
    folder = Path(name)
    if not folder.is_dir():
        return cached(name)
    if (folder / MANIFEST).is_file():
        return None
    return next((folder / below for below in BELOW if (folder / below / CONFIG).is_file()), None)


def locate(name: str) -> Path:
    """As `find`; a folder without a `config.json` is given as it is. Raises UsageError where there is none."""
    folder = find(name) or (Path(name) if Path(name).is_dir() else None)
    if folder is None:
        raise UsageError(f"checkpoint: {absent(name)}")
    return folder


def fetch(name: str) -> Path:
    """As `locate`; a repository that is not cached is downloaded, where huggingface_hub is there and a network."""
    if find(name) is None and not Path(name).is_dir() and REPOSITORY.fullmatch(name):
        with contextlib.suppress(ImportError):
            from huggingface_hub import snapshot_download

            try:
                return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.model"]))
            except Exception as error:  # of requests, of httpx, its own: whatever keeps it from being downloaded
                reason = " ".join(str(error).split())[:200]
                raise UsageError(f"checkpoint: {absent(name)}, and was not to be downloaded: {reason}") from error
    return locate(name)


def absent(name: str) -> str:
    """What there is to say of a `name` that is neither a folder nor cached."""
    download = f" (hf download {name})" if REPOSITORY.fullmatch(name) else ""
    return f"{name} is neither a folder nor a repository in the local Hugging Face cache{download}"


def title(name: str) -> str:
    """What the policy is called: the training run's folder, or the repository."""
    parts = [part for part in Path(name).parts if part not in LAYOUT and not part.isdecimal()]
    return parts[-1].strip(".") or "policy" if parts else "policy"
