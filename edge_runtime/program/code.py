"""Code of the user's own, named `module:name` in a setting or on a command line."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from edge_runtime.errors import ConfigError


def load(name: str, setting: str, *, again: bool = False) -> Any:
    """What `module:name` means, looked for where the user stands too. Raises ConfigError, which begins with `setting`.

    `again` reads the module's file anew.
    """
    module_name, _, attribute = name.partition(":")
    if "" not in sys.path:
        sys.path.append("")  # a user's file lies where they stand; after ours, or it could stand in for a library
    try:
        importlib.invalidate_caches()
        loaded = sys.modules.get(module_name) if again else None
        module = importlib.import_module(module_name) if loaded is None else importlib.reload(loaded)
        return getattr(module, attribute)
    except (Exception, SystemExit) as error:  # whatever a user's own module may raise
        raise ConfigError(f"{setting}: cannot load {name!r}: {type(error).__name__}: {error}") from error
