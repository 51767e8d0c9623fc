"""`export-onnx --check BUNDLE`: what can be repeated without the checkpoint, on the machine where it will run."""

from __future__ import annotations

from pathlib import Path

from policy_server import bundle
from policy_server.bundle import ACTION
from policy_server.engines import open_engine
from policy_server.engines.providers import Runtime
from policy_server.export.parity import MAX_UNITS, Difference, cases
from policy_server.export.progress import Progress


def check(path: Path, runtime: Runtime, say: Progress) -> Difference:
    """Digests, shapes, and the stored pair: row by row and as a batch of three. Needs no torch.

    Raises ModelError when something is damaged or the actions differ by more than rounding, ConfigError when the
    provider asked for is not there.
    """
    loaded = bundle.load(path)
    digest = loaded.policy.digest.hex()[:12]
    say(f"{path.name}: {len(loaded.manifest['files'])} files as the manifest says, digest {digest}")
    engine = open_engine(loaded, runtime)
    pair = loaded.reference()
    expected = [case[ACTION] for case in cases({ACTION: pair.pop(ACTION)})]
    difference = Difference.of(expected, [engine.infer(case) for case in cases(pair)])
    say(f"stored pair on {engine.provider}: {difference}")
    difference.require("the stored pair", MAX_UNITS)
    return difference
