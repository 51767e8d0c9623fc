"""openpi's messages: msgpack, in which an array is a map of its bytes, its dtype and its shape. Bounded and checked.

`msgpack` is in the extra `openpi`, and is imported when the first message is.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_runtime.errors import ProtocolError
from edge_runtime.program import extras
from edge_runtime.wire import limits

MOST_BYTES = 64 << 20  # of one message
MOST_PARTS = 1 << 16  # entries of all lists and maps together
_MOST_IN_A_LIST = 1024  # msgpack sets a list's whole length aside as soon as it is said, at up to 1024 levels
_MOST_IN_A_MAP = 256
_MOST_AXES = 4
_DTYPES = {
    np.dtype(code).str: np.dtype(code)
    for code in ("?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8")
}


def check_installed() -> None:
    """Raises ConfigError when what the extra brings is missing."""
    extras.require("openpi", ("websockets", "msgpack"))


def pack(message: Any) -> bytes:
    """The bytes of `message`: maps, lists, numbers, text and arrays."""
    import msgpack

    packed: bytes = msgpack.packb(message, default=_as_map)
    return packed


def unpack(data: bytes) -> Any:
    """What `pack` was given; arrays are views of `data`. Raises ProtocolError for anything else."""
    import msgpack

    parts = 0

    def count(items: Any) -> Any:
        nonlocal parts
        parts += len(items)
        if parts > MOST_PARTS:
            raise ProtocolError(f"msgpack: more than {MOST_PARTS} entries")
        return items

    if len(data) > MOST_BYTES:
        raise ProtocolError(f"msgpack: {len(data)} bytes are more than {MOST_BYTES}")
    try:
        return msgpack.unpackb(
            data,
            strict_map_key=True,  # text and bytes alone
            list_hook=count,
            object_hook=lambda found: _from_map(count(found)),
            ext_hook=_refuse_extension,
            max_array_len=_MOST_IN_A_LIST,
            max_map_len=_MOST_IN_A_MAP,
        )
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        said = limits.sentence(str(error)) or type(error).__name__
        raise ProtocolError(f"msgpack: cannot be read ({said[:200]})") from error


def _as_map(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.str in _DTYPES:
        return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}
    raise TypeError(f"{type(value).__name__} has no place in an openpi message")


def _from_map(found: dict[Any, Any]) -> Any:
    if b"__ndarray__" in found:
        return _array(found)
    if b"__npgeneric__" in found:
        value = found.get(b"data")
        if type(value) not in (int, float, bool):
            raise ProtocolError("msgpack: a scalar is not a number")
        return value
    return found


def _array(found: dict[Any, Any]) -> npt.NDArray[Any]:
    data, shape, code = found.get(b"data"), found.get(b"shape"), found.get(b"dtype")
    if type(code) is not str or code not in _DTYPES:
        raise ProtocolError(f"msgpack: an array's dtype is not one of [{', '.join(_DTYPES)}]")
    if type(shape) is not list or len(shape) > _MOST_AXES or not all(type(n) is int and 0 < n < 1 << 31 for n in shape):
        raise ProtocolError(f"msgpack: an array's shape is not at most {_MOST_AXES} positive integers")
    if type(data) is not bytes or math.prod(shape) * _DTYPES[code].itemsize != len(data):
        raise ProtocolError("msgpack: an array's shape does not fit its bytes")
    return np.frombuffer(data, _DTYPES[code]).reshape(shape)


def _refuse_extension(code: int, data: bytes) -> Any:
    raise ProtocolError(f"msgpack: extension {code} is not known")
