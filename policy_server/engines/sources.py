"""What a name means that a server is told to serve: a bundle, or a policy written in Python."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from edge_runtime.errors import UsageError
from policy_server import bundle
from policy_server.engines import Source, checkpoint_folder
from policy_server.engines.hub import REPOSITORY
from policy_server.engines.python import PythonPolicy


def is_code(name: str) -> bool:
    """Whether `name` is `module:function` or `module:Class`, and no folder's."""
    return ":" in name and "://" not in name and not Path(name).is_dir()


def find(name: str, code: Collection[str], *, again: bool = False) -> Source:
    """The bundle or the policy of that name; of code only what is among `code`, the server's own command line.

    Raises UsageError (no such bundle, code that is named elsewhere), ModelError and ConfigError (it cannot be served).
    """
    if "://" in name:
        raise UsageError(f"bundle: {name} is another server's policy, which can be named when this one is started only")
    if not is_code(name):
        if REPOSITORY.fullmatch(name) and not Path(name).is_dir():
            raise UsageError(f"bundle: {checkpoint_folder.absent(name)}")
        return bundle.load(bundle.locate(name))
    if name not in code:
        raise UsageError(f"bundle: {name} is code, which may be named on the server's own command line only")
    return PythonPolicy(name, again=again)
