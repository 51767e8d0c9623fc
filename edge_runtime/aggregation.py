"""How a new chunk blends with what is planned: LeRobot's names, one of ours, or a function of the user's own."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from edge_runtime._realtime import AGGREGATE, LinearBlend, TemporalEnsemble
from edge_runtime.errors import ConfigError
from edge_runtime.schema import hint

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


def for_policy(name: str | None, coeff: float) -> Any:
    """What the ring takes for a policy with this `temporal_ensemble_coeff` (0 = none).

    Without a name, a policy that was made to be ensembled is ensembled; any other takes DEFAULT.
    """
    if name == ENSEMBLE or (name is None and coeff):
        return TemporalEnsemble(coeff or ENSEMBLE_COEFF)
    return resolve(name or DEFAULT)


def resolve(name: str) -> Any:
    """`aggregate_fn_name` as the ring takes it: (keep, take), a blend over time, or a function (old, new) -> rows.

    Raises ConfigError for a name that is neither in NAMES nor an importable `module:function`.
    """
    if name in NAMES:
        return NAMES[name]
    module_name, colon, function_name = name.partition(":")
    if not colon:
        raise ConfigError(f"aggregate_fn_name: {name!r} is no name, nor module:function; {hint(name, NAMES)}")
    return _load(name, module_name, function_name)


def _load(name: str, module_name: str, function_name: str) -> Callable[..., Any]:
    if "" not in sys.path:
        sys.path.insert(0, "")  # a user's file lies where they stand; an installed command does not look there
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except Exception as error:  # whatever a user's own module may raise
        raise ConfigError(f"aggregate_fn_name: cannot load {name!r}: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise ConfigError(f"aggregate_fn_name: {name!r} is not a function")
    return function  # type: ignore[no-any-return]
