"""What a LeRobot client says, taken from the records of its pickles; every field is checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_runtime.errors import ProtocolError
from edge_runtime.wire.messages import Pixels
from policy_server.serving.lerobot.records import Name, Record, read

IMAGES = "observation.images."
# Where LeRobot 0.3.3 to 0.6.1 keep their messages.
HELPERS = ("lerobot.async_inference.helpers", "lerobot.scripts.server.helpers")
_ARRAY_MODULES = ("numpy._core.multiarray", "numpy.core.multiarray")
_BUFFER_MODULES = ("numpy._core.numeric", "numpy.core.numeric")
_DTYPES = {code: np.dtype(code) for code in ("u1", "i1", "b1", "u2", "i2", "i4", "i8", "f2", "f4", "f8")}
_MOST_TEXT = 4096  # characters of a task
_MOST_ENTRIES = 256  # of an observation
LARGEST = float(np.finfo(np.float32).max)
_LAST_TIMESTEP = 1 << 53


@dataclass(frozen=True)
class Seen:
    """A `TimedObservation`: numbers by joint, uint8 (height, width, 3) pictures by camera.

    `timestamp` is the client's clock in seconds; `module` is where the client finds its message types.
    """

    timestamp: float
    timestep: int
    must_go: bool
    numbers: Mapping[str, float]
    pictures: Mapping[str, Pixels]
    task: str
    module: str


@dataclass(frozen=True)
class Setup:
    """A `RemotePolicyConfig`: the policy that the client asks for, and what its robot is."""

    policy_type: str
    path: str
    joints: tuple[str, ...]
    cameras: Mapping[str, tuple[int, int]]  # name -> height, width
    rows: int
    rename: Mapping[str, str]  # camera -> the policy's name for it


def observation(data: bytes | memoryview) -> Seen:
    """Raises ProtocolError, which names the field."""
    record, state = _message(data, "TimedObservation")
    timestamp = _number(state.get("timestamp"), "timestamp")
    timestep = state.get("timestep")
    if type(timestep) is not int or not 0 <= timestep < _LAST_TIMESTEP:
        raise ProtocolError("timestep: is not an integer of 0 and more")
    raw = state.get("observation")
    if type(raw) is not dict or len(raw) > _MOST_ENTRIES:
        raise ProtocolError(f"observation: is not a dict of at most {_MOST_ENTRIES} entries")
    numbers: dict[str, float] = {}
    pictures: dict[str, Pixels] = {}
    for key, value in raw.items():
        name = _key(key, "observation")
        if type(value) in (int, float, bool):
            numbers[name] = _number(value, name)
        elif type(value) is Record:
            array = _array(value, name)
            if array.ndim == 0:
                numbers[name] = _number(array.item(), name)
            elif array.dtype == np.uint8 and array.ndim == 3 and array.shape[2] == 3:
                pictures[name] = array
            else:
                raise ProtocolError(f"{name}: {array.dtype} {array.shape} is neither a number nor uint8 (H, W, 3)")
    task = raw.get("task", "")
    if type(task) is not str or len(task) > _MOST_TEXT:
        raise ProtocolError(f"task: is not a text of at most {_MOST_TEXT} characters")
    must_go = state.get("must_go", False) is True
    return Seen(timestamp, timestep, must_go, numbers, pictures, task, record.callee.module)


def setup(data: bytes | memoryview) -> Setup:
    """Raises ProtocolError, which names the field."""
    _, state = _message(data, "RemotePolicyConfig")
    features = state.get("lerobot_features")
    if type(features) is not dict or len(features) > _MOST_ENTRIES:
        raise ProtocolError(f"lerobot_features: is not a dict of at most {_MOST_ENTRIES} entries")
    rows = state.get("actions_per_chunk")
    if type(rows) is not int or not 0 < rows < 1 << 31:
        raise ProtocolError("actions_per_chunk: is not an integer of 1 and more")
    joints: tuple[str, ...] = ()
    cameras: dict[str, tuple[int, int]] = {}
    for key, feature in features.items():
        name = _key(key, "lerobot_features")
        if type(feature) is not dict:
            raise ProtocolError(f"{name}: is not a dict")
        if name == "observation.state":
            names: Any = feature.get("names")
            if type(names) not in (list, tuple) or len(names) > _MOST_ENTRIES:
                raise ProtocolError(f"{name}: its names are not a list")
            joints = tuple(_key(joint, name) for joint in names)
        elif name.startswith(IMAGES):
            shape: Any = feature.get("shape")
            if type(shape) not in (list, tuple) or len(shape) != 3 or not all(type(n) is int for n in shape):
                raise ProtocolError(f"{name}: its shape is not three integers")
            cameras[name.removeprefix(IMAGES)] = shape[0], shape[1]
    rename = state.get("rename_map") or {}
    if type(rename) is not dict or len(rename) > _MOST_ENTRIES:
        raise ProtocolError("rename_map: is not a dict")
    renamed = {
        _key(old, "rename_map").removeprefix(IMAGES): _key(new, "rename_map").removeprefix(IMAGES)
        for old, new in rename.items()
    }
    return Setup(_text(state, "policy_type"), _text(state, "pretrained_name_or_path"), joints, cameras, rows, renamed)


def _message(data: bytes | memoryview, kind: str) -> tuple[Record, dict[Any, Any]]:
    record = read(data)
    if type(record) is not Record or record.callee.name != kind or record.callee.module not in HELPERS:
        raise ProtocolError(f"pickle: is not LeRobot's {kind}")
    if type(record.state) is not dict:
        raise ProtocolError(f"{kind}: has no fields")
    return record, record.state


def _key(key: Any, where: str) -> str:
    if type(key) is not str or not key.isprintable() or not 0 < len(key) <= 200:
        raise ProtocolError(f"{where}: a name is not a printable text of at most 200 characters")
    return key


def _text(state: dict[Any, Any], field: str) -> str:
    text = state.get(field)
    if type(text) is not str or not text.isprintable() or len(text) > _MOST_TEXT:
        raise ProtocolError(f"{field}: is not a printable text of at most {_MOST_TEXT} characters")
    return text


def _number(value: Any, field: str) -> float:
    if type(value) not in (int, float, bool) or not abs(value) <= LARGEST:
        raise ProtocolError(f"{field}: is not a finite number of single precision")
    return float(value)


def _array(record: Record, field: str) -> npt.NDArray[Any]:
    """The array or scalar that `record` describes: a view of the message."""
    callee, arguments, state = record.callee, record.arguments, record.state
    if callee.module in _ARRAY_MODULES and callee.name == "scalar" and len(arguments) == 2:
        return _view(arguments[1], _dtype(arguments[0], field), (), "C", field)
    if callee.module in _BUFFER_MODULES and callee.name == "_frombuffer" and len(arguments) == 4:
        return _view(arguments[0], _dtype(arguments[1], field), arguments[2], arguments[3], field)
    if callee.module in _ARRAY_MODULES and callee.name == "_reconstruct" and type(state) is tuple and len(state) == 5:
        return _view(state[4], _dtype(state[2], field), state[1], "F" if state[3] is True else "C", field)
    raise ProtocolError(f"{field}: is neither a number nor an array of numpy")


def _dtype(record: Any, field: str) -> np.dtype[Any]:
    if type(record) is Record and record.callee == Name("numpy", "dtype") and record.arguments:
        code = record.arguments[0]
        big = type(record.state) is tuple and record.state[1:2] == (">",)
        if type(code) is str and code in _DTYPES and not big:
            return _DTYPES[code]
    raise ProtocolError(f"{field}: its dtype is not one of [{', '.join(_DTYPES)}]")


def _view(data: Any, dtype: np.dtype[Any], shape: Any, order: Any, field: str) -> npt.NDArray[Any]:
    if type(shape) is not tuple or len(shape) > 4 or not all(type(n) is int and 0 <= n < 1 << 31 for n in shape):
        raise ProtocolError(f"{field}: its shape is not at most four integers")
    if type(data) is not memoryview or math.prod(shape) * dtype.itemsize != len(data):
        raise ProtocolError(f"{field}: its shape does not fit its bytes")
    flat = np.frombuffer(data, dtype)
    return flat.reshape(shape, order="F" if order == "F" else "C")
