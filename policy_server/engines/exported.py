"""A LeRobot checkpoint as a bundle: exported once into a cache, by its own files and what the user states of it."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path

from edge_runtime.errors import ConfigError, EdgeRuntimeError
from edge_runtime.program import extras
from policy_server.bundle import MANIFEST, digests
from policy_server.engines import checkpoint_folder
from policy_server.engines.stated import Stated

log = logging.getLogger(__name__)

NEEDS = ("torch", "safetensors", "onnx", "onnxscript")  # of the extra `export`
_LAST_WORDS = "export-onnx: "
_DONE = re.compile(r"\s*[\d.]+ s  (.*)")  # a line of its progress


def bundle_of(name: str, folder: Path, robot: Stated, cache: Path, stop: Future[None]) -> Path:
    """The bundle of the checkpoint `name` in `folder`; `robot` is what it does not say itself.

    Raises ConfigError where the extra is missing, what the export raises, CancelledError once `stop` is done.
    """
    told = robot.flags
    title = checkpoint_folder.title(str(folder) if Path(name).is_dir() else name)
    output = cache.expanduser() / "bundles" / _key(folder, told) / title
    if (output / MANIFEST).is_file():
        log.info("%s was exported before: %s", name, output)
        return output
    if not all(importlib.util.find_spec(module) for module in NEEDS):
        by_hand = shlex.join(["export-onnx", name, f"--output={title}", *told])
        raise ConfigError(
            f"{name} is a LeRobot checkpoint, and to export it here needs {extras.install('export')}; "
            f"or where torch is: {by_hand}"
        )
    log.info("%s is a LeRobot checkpoint: exporting it once into %s", name, output)
    _export([str(folder), f"--output={output}", *told], output, stop)
    return output


def _export(arguments: Sequence[str], output: Path, stop: Future[None]) -> None:
    """Run export-onnx in a process of its own, so that torch is gone when it has ended; its progress is logged."""
    last = ""
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "policy_server.export.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    ) as process:
        stop.add_done_callback(lambda _: process.terminate())
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(_LAST_WORDS):
                last = line.removeprefix(_LAST_WORDS).strip()
            elif done := _DONE.fullmatch(line.rstrip("\n")):
                log.info("export: %s", done[1].strip())
    if stop.done():
        raise CancelledError
    if process.returncode and not (output / MANIFEST).is_file():  # or another process was faster
        error = EdgeRuntimeError(last or f"export-onnx ended with exit code {process.returncode}")
        error.exit_code = max(process.returncode, 1)
        raise error


def _key(folder: Path, told: Sequence[str]) -> str:
    """Of all that the bundle depends on: the checkpoint's files, what was stated, and the exporter itself."""
    files = [(name, digest.sha256) for name, digest in digests(folder).items()]
    code = [
        (path.name, path.read_bytes().hex()) for path in sorted((Path(__file__).parents[1] / "export").glob("*.py"))
    ]
    return hashlib.sha256(json.dumps([files, list(told), code]).encode()).hexdigest()[:32]
