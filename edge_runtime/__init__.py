"""Asynchronous inference for robots whose policies predict chunks of actions: the robot's side.

Each name below is loaded when it is first used: to import the package costs no numpy and no gRPC.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # as type checkers know it; `typing` itself would be most of what the import costs
if TYPE_CHECKING:
    from typing import Any

    from edge_runtime.cameras import Camera, CameraFrame
    from edge_runtime.config import StartConfig
    from edge_runtime.errors import (
        AccessError,
        ActuatorFault,
        ConfigError,
        DeviceError,
        EdgeRuntimeError,
        ModelError,
        OutputError,
        ProtocolError,
        StreamError,
    )
    from edge_runtime.link.client import PolicyClient
    from edge_runtime.robots import Robot
    from edge_runtime.runtime import run
    from edge_runtime.wire.messages import Chunk, Joint, Observation

__all__ = [
    "AccessError",
    "ActuatorFault",
    "Camera",
    "CameraFrame",
    "Chunk",
    "ConfigError",
    "DeviceError",
    "EdgeRuntimeError",
    "Joint",
    "ModelError",
    "Observation",
    "OutputError",
    "PolicyClient",
    "ProtocolError",
    "Robot",
    "StartConfig",
    "StreamError",
    "run",
]

_PLACES = {
    "Camera": "cameras",
    "CameraFrame": "cameras",
    "Chunk": "wire.messages",
    "Joint": "wire.messages",
    "Observation": "wire.messages",
    "PolicyClient": "link.client",
    "Robot": "robots",
    "StartConfig": "config",
    "run": "runtime",
}  # all others are errors


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_PLACES.get(name, 'errors')}"), name)
    globals()[name] = found  # the next use does not come here
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
