"""Can everything be imported that a run imports, and what is there for a policy server?"""

from __future__ import annotations

import importlib
import platform
from collections.abc import Generator
from importlib import metadata
from pathlib import Path

from edge_runtime.errors import ConfigError
from edge_runtime.program import extras
from edge_runtime.tools.doctor.finding import Finding, Group

MACHINE = Group("this computer")
IMPORTED = {  # module -> the package it is installed by
    "numpy": "numpy",
    "grpc": "grpcio",
    "edge_runtime.wire.policy_pb2": "protobuf",
    "serial": "pyserial",
    "cv2": "opencv-python-headless",
    "yaml": "pyyaml",
    "edge_runtime._realtime": "edge-runtime",
}
ONNXRUNTIMES = ("onnxruntime", "onnxruntime-gpu")


def examine(*, needs_model: bool) -> Generator[Finding, None, bool]:
    """Python and its packages; returns whether all were found. `needs_model`: a policy server is to run here."""
    yield MACHINE.ok("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    versions, failed = [], False
    for module, package in IMPORTED.items():
        try:
            importlib.import_module(module)
        except Exception as error:  # whatever an import raises, a wrong version of protobuf included, is the finding
            failed = True
            reason = ConfigError(f"{package} cannot be imported: {error}")
            yield MACHINE.failed("packages", reason, f"pip install --upgrade {package}")
        else:
            versions.append(f"{package} {_version(package) or 'of unknown version'}")
    yield MACHINE.ok("packages", ", ".join(versions))
    yield _onnxruntime(needs_model)
    return not failed


def _onnxruntime(needed: bool, root: Path = Path("/")) -> Finding:
    found = [f"{package} {version}" for package in ONNXRUNTIMES if (version := _version(package))]
    if len(found) > 1:
        said = f"{' and '.join(found)} share one folder and break each other"
        return MACHINE.warning("onnxruntime", said, f"pip uninstall {' '.join(ONNXRUNTIMES)}, then install one")
    if found:
        return MACHINE.ok("onnxruntime", found[0])
    if _is_jetson(root):
        install = "the onnxruntime-gpu wheel that NVIDIA has for this JetPack; the one on PyPI has no CUDA here"
    else:
        install = f"{extras.install('server')} (with an NVIDIA GPU: [server-gpu])"
    if needed:
        return MACHINE.failed("onnxruntime", ConfigError("is not installed, and --bundle needs it here"), install)
    return MACHINE.skipped("onnxruntime", f"not here, and only a policy server needs it: {install}")


def _is_jetson(root: Path) -> bool:
    return (root / "etc/nv_tegra_release").exists() or (root / "usr/lib/aarch64-linux-gnu/tegra").exists()


def _version(package: str) -> str:
    """Of the distribution, or of the one with windows that it stands in for."""
    for name in (package, package.removesuffix("-headless")):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""
