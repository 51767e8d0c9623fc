"""A chunk as the pickle that LeRobot's client loads: one tensor for all rows, written without torch."""

from __future__ import annotations

import struct

import numpy as np

from edge_runtime.wire.messages import Floats


def encode(actions: Floats, first_timestep: int, timestamp: float, period_s: float, module: str) -> bytes:
    """`actions` (rows, joints) as a list of `TimedAction`; row i is for `first_timestep` + i.

    Its time is `timestamp` + i * `period_s`. LeRobot's server pickles every row as a tensor, each with the storage of
    the whole chunk: 75,905 bytes for 50 x 6. Here all rows share one tensor, `torch.from_numpy(ndarray)`, and a row is
    `operator.getitem(tensor, i)`. `module` is where the client finds `TimedAction`.
    """
    rows, joints = actions.shape
    values = np.ascontiguousarray(actions, "<f4").tobytes()
    tensor = _name("torch", "from_numpy") + _name("numpy", "ndarray") + _integer(rows) + _integer(joints) + b"\x86"
    tensor += _text("f4") + b"\x96" + struct.pack("<Q", len(values)) + values + b"\x87R\x85R"
    # The memo: what every row uses, by the number under which it is got back.
    memo = [
        tensor,
        _name(module, "TimedAction"),
        _name("operator", "getitem"),
        _text("timestamp"),
        _text("timestep"),
        _text("action"),
    ]
    said = [b"\x80\x05", *(item + b"\x94" + b"0" for item in memo), b"]("]
    for row in range(rows):
        said += [
            b"h\x01)\x81}(",
            b"h\x03G" + struct.pack(">d", timestamp + row * period_s),
            b"h\x04" + _integer(first_timestep + row),
            b"h\x05h\x02h\x00" + _integer(row) + b"\x86R",
            b"ub",
        ]
    return b"".join([*said, b"e."])


def _text(text: str) -> bytes:
    data = text.encode()
    return b"\x8c" + bytes([len(data)]) + data


def _name(module: str, name: str) -> bytes:
    return _text(module) + _text(name) + b"\x93"


def _integer(number: int) -> bytes:
    if number < 1 << 8:
        return b"K" + bytes([number])
    if number < 1 << 16:
        return b"M" + struct.pack("<H", number)
    if number < 1 << 31:
        return b"J" + struct.pack("<i", number)
    return b"\x8a\x08" + struct.pack("<q", number)
