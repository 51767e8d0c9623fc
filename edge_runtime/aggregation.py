"""How a new chunk blends with what is planned: LeRobot's names, or a function of the user's own."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Callable
from typing import Any

from edge_runtime._realtime import AGGREGATE
from edge_runtime.errors import ConfigError


def resolve(name: str) -> Any:
    """`aggregate_fn_name` as the ring takes it: (keep, take), or a callable of (old, new) -> blended rows.

    Raises ConfigError for a name that is neither in AGGREGATE nor an importable `module:function`.
    """
    if name in AGGREGATE:
        return AGGREGATE[name]
    module_name, colon, function_name = name.partition(":")
    if not colon:
        near = difflib.get_close_matches(name, AGGREGATE, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"aggregate_fn_name: {name!r} is none of {', '.join(AGGREGATE)}, nor module:function{hint}")
    return _load(name, module_name, function_name)


def _load(name: str, module_name: str, function_name: str) -> Callable[..., Any]:
    if "" not in sys.path:
        sys.path.insert(0, "")  # a user's file lies where they stand; an installed command does not look there
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"aggregate_fn_name: cannot load {name!r}: {error}") from error
    if not callable(function):
        raise ConfigError(f"aggregate_fn_name: {name!r} is not a function")
    return function  # type: ignore[no-any-return]
