"""Where what TensorRT built is kept, so that the next start takes seconds: a folder for each thing it depends on.

An engine fits the weights, the versions that built it and the device it was timed on, and no other; ONNX Runtime looks
at none of these when it finds one. So they are the folder's name.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType

log = logging.getLogger(__name__)

DEFAULT = Path("~/.cache/edge-runtime/engines")
_NVINFER = ("libnvinfer.so.11", "libnvinfer.so.10", "libnvinfer.so")
_CUDA = "libcuda.so.1"
_COMPUTE_CAPABILITY = (75, 76)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR


@dataclass(frozen=True)
class BuiltFor:
    """All that an engine depends on: a digest of the weights, versions, the device's name and compute capability."""

    weights: str
    onnxruntime: str
    library: str
    device: str

    @property
    def key(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:32]


def folder(root: Path, ort: ModuleType, weights: str, device_id: int) -> Path | None:
    """The folder for these weights on this machine, made if need be; None when it cannot be told what they depend on.

    Beside the engines lies `built_for.json`, for people.
    """
    library, device = tensorrt_version(), device_name(device_id)
    if not (weights and library and device):
        log.warning("engines are built at each start: no telling which %s this is", "device" if library else "TensorRT")
        return None
    built_for = BuiltFor(weights, ort.__version__, library, device)
    path = root.expanduser() / built_for.key
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        (path / "built_for.json").write_text(json.dumps(asdict(built_for), indent=2) + "\n")
    except OSError as error:
        log.warning("engines are built at each start: %s cannot be written (%s)", path, error.strerror)
        return None
    return path


def tensorrt_version() -> str:
    """TensorRT's version as one number, from the library itself; empty when there is none."""
    for name in _NVINFER:
        try:
            return f"tensorrt {ctypes.CDLL(name).getInferLibVersion()}"
        except (OSError, AttributeError):
            continue
    return ""


def device_name(device_id: int) -> str:
    """The GPU's name and compute capability, from the driver; empty when there is none."""
    try:
        cuda = ctypes.CDLL(_CUDA)
    except OSError:
        return ""
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(256)
    failed = (
        cuda.cuInit(0)
        or cuda.cuDeviceGet(ctypes.byref(device), device_id)
        or cuda.cuDeviceGetName(name, len(name), device)
        or cuda.cuDeviceGetAttribute(ctypes.byref(major), _COMPUTE_CAPABILITY[0], device)
        or cuda.cuDeviceGetAttribute(ctypes.byref(minor), _COMPUTE_CAPABILITY[1], device)
    )
    return "" if failed else f"{name.value.decode()} sm_{major.value}{minor.value}"
