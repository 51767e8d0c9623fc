"""Asynchronous inference for robots whose policies predict chunks of actions: the accelerator's side.

`from policy_server import policy` describes a policy written in Python: docs/your-policy.md.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from policy_server.engines.python import policy

__all__ = ["policy"]


def __getattr__(name: str) -> object:
    if name != "policy":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from policy_server.engines.python import policy

    return policy
