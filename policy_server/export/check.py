"""`export-onnx --check BUNDLE`: what can be repeated without the checkpoint, on the machine where it will run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from edge_runtime.errors import ModelError
from edge_runtime.program.schema import shown
from policy_server import bundle
from policy_server.bundle import ACTION, MANIFEST, Bundle
from policy_server.engines import open_engine
from policy_server.engines.providers import Runtime
from policy_server.export.parity import Difference, cases
from policy_server.export.progress import Progress


def check(path: Path, runtime: Runtime, say: Progress) -> Difference:
    """Digests, shapes, and the stored pair: row by row and as a batch of three. Needs no torch.

    Raises ModelError when something is damaged or the actions differ by more than rounding, ConfigError when the
    provider asked for is not there.
    """
    loaded = bundle.load(path)
    digest = loaded.policy.digest.hex()[:12]
    say(f"{path.name}: {len(loaded.manifest.files)} files as the manifest says, digest {digest}")
    engine = open_engine(loaded, runtime)
    pair = loaded.reference()
    expected = [case[ACTION] for case in cases({ACTION: pair.pop(ACTION)})]
    difference = Difference.of(expected, [engine.infer(case) for case in cases(pair)], scale_of(loaded))
    say(f"stored pair on {engine.provider}: {difference}")
    difference.require("the stored pair")
    return difference


def scale_of(loaded: Bundle) -> npt.NDArray[np.float64] | float:
    """A normalised unit in each joint's own: 1e-3 is little in degrees and much in metres.

    Infinite for a bundle whose manifest does not say.
    """
    told = loaded.manifest.parity.get("scale")
    if told is None:
        return np.inf
    try:
        scale = np.array(told, np.float64)
    except (TypeError, ValueError):
        scale = np.array(np.nan)
    if scale.shape != (len(loaded.policy.joints),) or not np.isfinite(scale).all():
        raise ModelError(f"{loaded.path / MANIFEST}: parity: scale: {shown(told)} is not a number for each joint")
    return scale
