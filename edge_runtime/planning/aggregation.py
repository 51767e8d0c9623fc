"""How a new chunk blends with what is planned: LeRobot's names, one of ours, or a function of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from edge_runtime._realtime import AGGREGATE, ActionRing, LinearBlend, TemporalEnsemble
from edge_runtime.errors import ConfigError
from edge_runtime.program import code
from edge_runtime.program.schema import hint
from edge_runtime.wire.messages import Floats

# Long enough that no seam is a motion's largest step, short enough to follow what was last seen: docs/asyncbench.md.
BLEND_ROWS = 6
DEFAULT = "linear_blend"  # smoothest at the seams, and as successful as any: docs/asyncbench.md
ENSEMBLE = "temporal_ensemble"
ENSEMBLE_COEFF = 0.01  # of the ACT paper (arXiv 2304.13705, section IV), for a policy that names none
NAMES: Mapping[str, Any] = {
    **AGGREGATE,
    "linear_blend": LinearBlend(BLEND_ROWS),
    ENSEMBLE: TemporalEnsemble(ENSEMBLE_COEFF),
}


def for_policy(name: Any, coeff: float, chunk: tuple[int, int] | None = None) -> Any:
    """What the ring takes for a policy with this `temporal_ensemble_coeff` (0 = none).

    Without a name (None), a policy that was made to be ensembled is ensembled; any other takes DEFAULT. What is not a
    name is what the ring takes already. A function of the user's is tried out on chunks of this shape, (rows, joints).
    Raises ConfigError.
    """
    if name == ENSEMBLE or (name is None and coeff):
        return TemporalEnsemble(coeff or ENSEMBLE_COEFF)
    aggregate = resolve(name or DEFAULT) if name is None or isinstance(name, str) else name
    if callable(aggregate) and chunk is not None:
        _try_out(aggregate, *chunk)
    return aggregate


def resolve(name: str) -> Any:
    """`aggregate_fn_name` as the ring takes it: (keep, take), a blend over time, or a function (old, new) -> rows.

    Raises ConfigError for a name that is neither in NAMES nor an importable `module:function`.
    """
    if name in NAMES:
        return NAMES[name]
    if ":" not in name:
        raise ConfigError(f"aggregate_fn_name: {name!r} is no name, nor module:function; {hint(name, NAMES)}")
    return _load(name)


def _load(name: str) -> Callable[..., Any]:
    function = code.load(name, "aggregate_fn_name")
    if not callable(function):
        raise ConfigError(f"aggregate_fn_name: {name!r} is not a function")

    def blend(old: Floats, new: Floats) -> Floats:
        try:
            return np.asarray(function(old, new), np.float32)
        except (Exception, SystemExit) as error:  # whatever a user's own function may raise
            raise ConfigError(f"aggregate_fn_name: {name!r} failed: {type(error).__name__}: {error}") from error

    return blend


def _try_out(aggregate: Callable[..., Any], rows: int, joints: int) -> None:
    """Blends of a whole chunk and of half of one, before the arm is touched: as many rows as will come in the run."""
    ring = ActionRing(2 * rows, joints, aggregate)
    ring.open_session(1, clear=True, cursor=0)
    for value, first in enumerate((0, 0, rows // 2)):
        ring.merge(first, np.full((rows, joints), value, np.float32), 1)
